! The same rod in Fortran without MPI: heat TEMPERATURE STEPS CELLS
program heat
  use, intrinsic :: iso_c_binding, only: c_double
  use compss_train
  implicit none
  integer :: n, t, steps
  real(c_double), allocatable :: u(:), flux(:)
  character(len=32) :: argument(3)

  do t = 1, 3
    call get_command_argument(t, argument(t))
  end do
  read (argument(2), *) steps
  read (argument(3), *) n
  allocate (u(0:n + 1), flux(n))
  u = 0
  read (argument(1), *) u(0)
  call compss_train_init("temperature", n)
  call compss_train_init("flux", n)
  do t = 0, steps - 1
    flux = u(0:n - 1) - u(1:n)
    u(1:n) = u(1:n) + 0.25d0 * ((u(0:n - 1) - 2 * u(1:n)) + u(2:n + 1))
    call compss_train_send("temperature", u(1:n))
    if (mod(t, 2) == 0) then
      call compss_train_send("flux", flux, '{"even": true}')
    else
      call compss_train_send("flux", flux)
    end if
  end do
  call compss_train_finalize()
end program heat
