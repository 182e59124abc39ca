! mpi_nonblocking in Fortran: eight non-blocking collectives by mpif.h's names and six by the module mpi_f08, of which each
! rank learns in several ways, and whose results it checks. Then as mpi_calls.c.
subroutine old_names(rank, size)
    implicit none
    include 'mpif.h'
    integer :: rank, size, error, i, place, total, requests(3), statuses(MPI_STATUS_SIZE, 3), all(64), sums(4), value(1)
    volatile :: all, sums, value
    logical :: done

    total = size * (size + 1) / 2
    sums = rank + 1
    value = rank
    call MPI_IBARRIER(MPI_COMM_WORLD, requests(1), error)
    call MPI_IALLREDUCE(MPI_IN_PLACE, sums, 4, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(2), error)
    call MPI_IBCAST(value, 1, MPI_INTEGER, size - 1, MPI_COMM_WORLD, requests(3), error)
    call MPI_WAITALL(3, requests, statuses, error)
    if (any(sums /= total) .or. value(1) /= size - 1 .or. any(requests /= MPI_REQUEST_NULL)) error stop 1
    value = rank + 1
    do i = 1, 2
        all(1) = rank + 1
        call MPI_IALLREDUCE(MPI_IN_PLACE, all, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(1), error)
        done = .false.
        do while (.not. done .and. i == 1)
            call MPI_TEST(requests(1), done, MPI_STATUS_IGNORE, error)
        end do
        if (i == 2) call MPI_WAIT(requests(1), MPI_STATUS_IGNORE, error)
        if (all(1) /= total) error stop 2
    end do
    call MPI_ISCAN(value, all, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(1), error)
    done = .false.
    do while (.not. done)
        call MPI_REQUEST_GET_STATUS(requests(1), done, statuses, error) ! Open MPI's does nothing without a status
    end do
    if (all(1) /= (rank + 1) * (rank + 2) / 2) error stop 3
    call MPI_WAITANY(1, requests, place, MPI_STATUS_IGNORE, error)
    call MPI_IALLGATHER(value, 1, MPI_INTEGER, all, 1, MPI_INTEGER, MPI_COMM_WORLD, requests(1), error)
    call MPI_IREDUCE(value, sums, 1, MPI_INTEGER, MPI_MAX, 0, MPI_COMM_WORLD, requests(2), error)
    call MPI_WAITALL(2, requests, MPI_STATUSES_IGNORE, error)
    if (all(size) /= size) error stop 4
end subroutine

subroutine new_names(rank, size)
    use mpi_f08
    implicit none
    integer :: rank, size, total, value, parts(64), count, places(3)
    double precision :: sums(4)
    volatile :: parts, sums, value
    type(MPI_Request) :: requests(3)
    logical :: done

    total = size * (size + 1) / 2
    value = rank + 1
    parts = rank + 1
    call MPI_Ibarrier(MPI_COMM_WORLD, requests(1))
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE)
    call MPI_Iallreduce(MPI_IN_PLACE, value, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(1))
    call MPI_Ireduce_scatter_block(MPI_IN_PLACE, parts, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(2))
    done = .false.
    do while (.not. done)
        call MPI_Testall(2, requests, done, MPI_STATUSES_IGNORE)
    end do
    if (value /= total .or. parts(1) /= total) error stop 5
    value = rank + 1
    sums = rank + 1
    call MPI_Iallreduce(MPI_IN_PLACE, sums, 4, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, requests(1))
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE)
    if (any(sums /= total)) error stop 6
    call MPI_Ibcast(value, 1, MPI_INTEGER, 1, MPI_COMM_WORLD, requests(1))
    call MPI_Waitsome(1, requests, count, places, MPI_STATUSES_IGNORE)
    if (value /= 2 .or. count /= 1) error stop 7
    call MPI_Ialltoall(parts(1), 0, MPI_INTEGER, parts(2), 0, MPI_INTEGER, MPI_COMM_WORLD, requests(1))
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE)
    call MPI_Iexscan(value, parts, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(1))
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE)
    if (rank > 0 .and. parts(1) /= 2 * rank) error stop 8
end subroutine

program mpi_nonblocking
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
