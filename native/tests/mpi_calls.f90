! mpi_calls in Fortran, by mpif.h's names and by the module mpi_f08: each rank sends 3 messages of 100 doubles to the next
! one, sums up 7 times, and gathers in place. Then as mpi_calls.c.
subroutine old_names(rank, size)
    implicit none
    include 'mpif.h'
    integer :: rank, size, error, request, i, sums(4096), status(MPI_STATUS_SIZE)
    double precision :: out(100), in(100)

    out = 1
    sums = 1
    do i = 1, 3
        call MPI_ISEND(out, 100, MPI_DOUBLE_PRECISION, mod(rank + 1, size), 1, MPI_COMM_WORLD, request, error)
        call MPI_RECV(in, 100, MPI_DOUBLE_PRECISION, mod(rank + size - 1, size), 1, MPI_COMM_WORLD, status, error)
        call MPI_WAIT(request, status, error)
    end do
    do i = 1, 7
        call MPI_ALLREDUCE(MPI_IN_PLACE, sums, 2, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
    end do
    call MPI_ALLGATHER(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, sums, 1, MPI_INTEGER, MPI_COMM_WORLD, error)
end subroutine

subroutine new_names(rank, size)
    use mpi_f08
    implicit none
    integer :: rank, size, i, sums(4096)
    double precision :: out(100), in(100)
    type(MPI_Request) :: request
    type(MPI_Comm) :: copy

    out = 1
    sums = 1
    call MPI_Comm_dup(MPI_COMM_WORLD, copy)
    do i = 1, 3
        call MPI_Isend(out, 100, MPI_DOUBLE_PRECISION, mod(rank + 1, size), 1, copy, request)
        call MPI_Recv(in, 100, MPI_DOUBLE_PRECISION, mod(rank + size - 1, size), 1, copy, MPI_STATUS_IGNORE)
        call MPI_Wait(request, MPI_STATUS_IGNORE)
    end do
    do i = 1, 7
        call MPI_Allreduce(MPI_IN_PLACE, sums, 2, MPI_INTEGER, MPI_SUM, copy)
    end do
    call MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, sums, 1, MPI_INTEGER, copy)
    call MPI_Comm_free(copy)
end subroutine

program mpi_calls
    use mpi_f08
    implicit none
    integer :: rank, size
    logical :: there
    character(len=4096) :: ready, stop

    call get_command_argument(1, ready)
    call get_command_argument(2, stop)
    call MPI_Init()
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call MPI_Comm_size(MPI_COMM_WORLD, size)
    call old_names(rank, size)
    call new_names(rank, size)
    if (rank == 0) then
        open (10, file=ready)
        close (10)
        there = .false.
        do while (.not. there)
            call sleep(1)
            inquire (file=stop, exist=there)
        end do
    end if
    call MPI_Barrier(MPI_COMM_WORLD)
    call MPI_Finalize()
end program
