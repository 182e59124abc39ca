! A program that moves itself: it sums in steps, and between them rank 0 moves first its own node, then that of the last
! rank, to the usable host with the most free memory. It reports to Wherry how much is left. Elsewhere it only sums.
!
!   mpif90 -O2 -o move_self $(wherry inside fortran) examples/move_self.f90
!   wherry run hello -n 4 -- ./move_self
program move_self
    use mpi
    use wherry
    implicit none
    integer, parameter :: STEPS = 30, MOST = 64
    integer :: rank, ranks, step, ignored, ierr
    integer :: mine, total_of_step, total

    call MPI_Init(ierr)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
    if (rank == 0) print '(a)', trim(merge('under Wherry    ', 'not under Wherry', wherry_active()))
    total = 0
    do step = 1, STEPS
        if (rank == 0 .and. wherry_active() .and. step == STEPS/3) call move_rank(0)
        if (rank == 0 .and. wherry_active() .and. step == 2*STEPS/3) call move_rank(ranks - 1)
        if (rank == 0) ignored = wherry_iterations_left(STEPS - step)
        call sleep_a_moment()
        mine = (rank + 1)*step
        call MPI_Allreduce(mine, total_of_step, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
        total = total + total_of_step
    end do
    if (rank == 0) print '(a,i0)', 'sum ', total
    call MPI_Finalize(ierr)
    if (total /= ranks*(ranks + 1)/2*STEPS*(STEPS + 1)/2) stop 1

contains

    subroutine move_rank(which)
        integer, intent(in) :: which
        type(wherry_place) :: before, after
        type(wherry_host) :: hosts(MOST)
        character(len=200) :: why
        integer :: i, best, count

        count = 0
        if (wherry_where_rank(which, before) /= WHERRY_OK) return
        if (wherry_hosts(hosts, count) /= WHERRY_OK) return
        best = 0
        do i = 1, min(count, MOST)
            if (.not. hosts(i)%usable .or. hosts(i)%name == before%host) cycle
            if (best == 0) best = i
            if (hosts(i)%free_memory > hosts(best)%free_memory) best = i
        end do
        if (best == 0) return
        if (wherry_move_rank(which, hosts(best)%name) /= WHERRY_OK) then
            call wherry_error(why)
            print '(a,i0,4a)', 'rank ', which, ' stays on ', trim(before%host), ': ', trim(why)
        else if (wherry_where_rank(which, after) == WHERRY_OK) then
            print '(a,i0,4a)', 'rank ', which, ' moved from ', trim(before%host), ' to ', trim(after%host)
        end if
    end subroutine

    subroutine sleep_a_moment()
        double precision :: begin

        begin = MPI_Wtime()
        do while (MPI_Wtime() < begin + 0.02d0)
        end do
    end subroutine
end program
