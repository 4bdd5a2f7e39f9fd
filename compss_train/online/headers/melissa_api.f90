! melissa_api.f90: Melissa's functions for solvers in Fortran with MPI, to include where procedures are declared.
!
! Names and texts end with c_null_char. Link libcompss_train.c, compiled with mpicc, or the library that
! `compss-train headers --build DIR` makes.
interface
  subroutine melissa_init(field_name, local_vect_size, mpi_communicator) bind(c, name="melissa_init_f")
    use, intrinsic :: iso_c_binding, only: c_char, c_int
    character(kind=c_char), dimension(*), intent(in) :: field_name
    integer(c_int), intent(in) :: local_vect_size
    integer(c_int), intent(in) :: mpi_communicator
  end subroutine melissa_init

  subroutine melissa_send(field_name, values) bind(c, name="melissa_send")
    use, intrinsic :: iso_c_binding, only: c_char, c_double
    character(kind=c_char), dimension(*), intent(in) :: field_name
    real(c_double), dimension(*), intent(in) :: values
  end subroutine melissa_send

  subroutine melissa_send_with_metadata(field_name, values, json) bind(c, name="melissa_send_with_metadata")
    use, intrinsic :: iso_c_binding, only: c_char, c_double
    character(kind=c_char), dimension(*), intent(in) :: field_name
    real(c_double), dimension(*), intent(in) :: values
    character(kind=c_char), dimension(*), intent(in) :: json
  end subroutine melissa_send_with_metadata

  subroutine melissa_finalize() bind(c, name="melissa_finalize")
  end subroutine melissa_finalize
end interface
