! The same rod in Fortran with MPI, as a solver for Melissa: melissa_heat TEMPERATURE STEPS CELLS
program heat
  use, intrinsic :: iso_c_binding
  implicit none
  include "mpif.h"
  include "melissa_api.f90"
  integer :: rank, ranks, left, right, first, n, t, steps, cells, error
  real(c_double), allocatable :: u(:), flux(:)
  character(len=32) :: argument(3)

  call mpi_init(error)
  call mpi_comm_rank(MPI_COMM_WORLD, rank, error)
  call mpi_comm_size(MPI_COMM_WORLD, ranks, error)
  do t = 1, 3
    call get_command_argument(t, argument(t))
  end do
  read (argument(2), *) steps
  read (argument(3), *) cells
  left = merge(rank - 1, MPI_PROC_NULL, rank > 0)
  right = merge(rank + 1, MPI_PROC_NULL, rank < ranks - 1)
  first = cells * rank / ranks
  n = cells * (rank + 1) / ranks - first
  allocate (u(0:n + 1), flux(n))
  u = 0
  if (rank == 0) read (argument(1), *) u(0)
  call melissa_init("temperature"//c_null_char, n, MPI_COMM_WORLD)
  call melissa_init("flux"//c_null_char, n, MPI_COMM_WORLD)
  do t = 0, steps - 1
    call mpi_sendrecv(u(1), 1, MPI_DOUBLE_PRECISION, left, 0, u(n + 1), 1, MPI_DOUBLE_PRECISION, right, 0, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
    call mpi_sendrecv(u(n), 1, MPI_DOUBLE_PRECISION, right, 0, u(0), 1, MPI_DOUBLE_PRECISION, left, 0, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
    flux = u(0:n - 1) - u(1:n)
    u(1:n) = u(1:n) + 0.25d0 * ((u(0:n - 1) - 2 * u(1:n)) + u(2:n + 1))
    call melissa_send("temperature"//c_null_char, u(1:n))
    if (mod(t, 2) == 0) then
      call melissa_send_with_metadata("flux"//c_null_char, flux, '{"even": true}'//c_null_char)
    else
      call melissa_send("flux"//c_null_char, flux)
    end if
  end do
  call melissa_finalize()
  call mpi_finalize(error)
end program heat
