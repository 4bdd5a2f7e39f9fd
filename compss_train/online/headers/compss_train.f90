! compss_train.f90: send the fields of a solver to a fit that trains on them while the solver runs.
!
! compss_train.h explains the four calls. Link libcompss_train.c, compiled with cc, or with mpicc where ranks hold parts of
! a field; or the library that `compss-train headers --build DIR` makes.
!
!     use compss_train
!     call compss_train_init("temperature", size(u))                     ! with MPI: ..., size(u), MPI_COMM_WORLD)
!     call compss_train_send("temperature", u)                           ! once a time step; u of any shape
!     call compss_train_finalize()
!
! Communicators are integers, as in the module mpi; of mpi_f08 give comm%mpi_val.
module compss_train
  use, intrinsic :: iso_c_binding, only: c_char, c_double, c_int, c_loc, c_null_char, c_null_ptr, c_ptr, c_size_t
  implicit none
  private
  public :: compss_train_init, compss_train_send, compss_train_finalize

  interface
    subroutine init_c(field, count, comm) bind(c, name="compss_train_init_f")
      import :: c_char, c_ptr, c_size_t
      character(kind=c_char), dimension(*), intent(in) :: field
      integer(c_size_t), value :: count
      type(c_ptr), value :: comm
    end subroutine init_c

    subroutine send_c(field, values, text) bind(c, name="compss_train_send_with_metadata")
      import :: c_char, c_double
      character(kind=c_char), dimension(*), intent(in) :: field
      real(c_double), dimension(*), intent(in) :: values
      character(kind=c_char), dimension(*), intent(in) :: text
    end subroutine send_c

    ! Say that all time steps were sent, and disconnect.
    subroutine compss_train_finalize() bind(c, name="compss_train_finalize")
    end subroutine compss_train_finalize
  end interface

contains

  ! Declare a field of so many doubles, on this rank of the communicator if there is one.
  subroutine compss_train_init(field, count, comm)
    character(len=*), intent(in) :: field
    integer, intent(in) :: count
    integer, intent(in), optional :: comm
    integer(c_int), target :: handle

    if (present(comm)) then
      handle = int(comm, c_int)
      call init_c(trim(field)//c_null_char, int(count, c_size_t), c_loc(handle))
    else
      call init_c(trim(field)//c_null_char, int(count, c_size_t), c_null_ptr)
    end if
  end subroutine compss_train_init

  ! Send the values of a field at the next time step, with a text, such as JSON, if any.
  subroutine compss_train_send(field, values, text)
    character(len=*), intent(in) :: field
    real(c_double), dimension(*), intent(in) :: values
    character(len=*), intent(in), optional :: text

    if (present(text)) then
      call send_c(trim(field)//c_null_char, values, text//c_null_char)
    else
      call send_c(trim(field)//c_null_char, values, c_null_char)
    end if
  end subroutine compss_train_send
end module compss_train
