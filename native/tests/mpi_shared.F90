! mpi_shared in Fortran, by mpif.h's names or, with NEW, by the module mpi_f08: each rank sends messages of 20000 doubles
! to the next one. Rank 0 prints how many were wrong, then the names in WHERRY_MPI_SHARED.
program mpi_shared
#ifdef NEW
    use mpi_f08
#define REQUEST type(MPI_Request)
#define STATUS type(MPI_Status)
#define ONE
#define ONE_OF
    implicit none
#else
    implicit none
    include 'mpif.h'
#define REQUEST integer
#define STATUS integer
#define ONE MPI_STATUS_SIZE,
#define ONE_OF 1,
#endif
    integer, parameter :: many = 20000
    integer :: rank, size, error, to, from, wrong, all, i, index, found
    logical :: done
    double precision :: out(many), in(many), other(many)
    REQUEST :: requests(3)
    STATUS :: statuses(ONE 3)

    call MPI_INIT(error)
    call MPI_COMM_RANK(MPI_COMM_WORLD, rank, error)
    call MPI_COMM_SIZE(MPI_COMM_WORLD, size, error)
    to = mod(rank + 1, size)
    from = mod(rank + size - 1, size)
    wrong = 0
    call MPI_BARRIER(MPI_COMM_WORLD, error)
    do i = 1, 10
        out = 100 * i + rank
        in = 0
        other = 0
        call MPI_IRECV(in, many, MPI_DOUBLE_PRECISION, from, 1, MPI_COMM_WORLD, requests(1), error)
        call MPI_IRECV(other, many, MPI_DOUBLE_PRECISION, from, 2, MPI_COMM_WORLD, requests(2), error)
        call MPI_ISEND(out, many, MPI_DOUBLE_PRECISION, to, 2, MPI_COMM_WORLD, requests(3), error)
        call MPI_SEND(out, many, MPI_DOUBLE_PRECISION, to, 1, MPI_COMM_WORLD, error)
        select case (mod(i, 5))
        case (0)
            call MPI_WAITALL(3, requests, statuses, error)
            call MPI_GET_COUNT(statuses(ONE_OF 2), MPI_DOUBLE_PRECISION, found, error)
            if (found /= many) wrong = wrong + 1
        case (1)
            call MPI_WAITALL(3, requests, MPI_STATUSES_IGNORE, error)
        case (2)
            do found = 1, 3
                call MPI_WAITANY(3, requests, index, MPI_STATUS_IGNORE, error)
            end do
        case (3)
            done = .false.
            do while (.not. done)
                call MPI_TESTALL(3, requests, done, MPI_STATUSES_IGNORE, error)
            end do
        case default
            do found = 3, 1, -1
                call MPI_WAIT(requests(found), statuses(ONE_OF 1), error)
            end do
        end select
        if (any(in /= 100 * i + from) .or. any(other /= 100 * i + from)) wrong = wrong + 1
        in = 0
        call MPI_SENDRECV(out, many, MPI_DOUBLE_PRECISION, to, 3, in, many, MPI_DOUBLE_PRECISION, from, 3, MPI_COMM_WORLD, &
                          MPI_STATUS_IGNORE, error)
        if (any(in /= 100 * i + from)) wrong = wrong + 1
    end do
    call MPI_REDUCE(wrong, all, 1, MPI_INTEGER, MPI_SUM, 0, MPI_COMM_WORLD, error)
    call MPI_BARRIER(MPI_COMM_WORLD, error)
    if (rank == 0) then
        print '(I0, A)', all, ' wrong'
        flush (6)
        call execute_command_line('cd "$WHERRY_MPI_SHARED" && find * -type f')
    end if
    call MPI_BARRIER(MPI_COMM_WORLD, error)
    call MPI_FINALIZE(error)
end program
