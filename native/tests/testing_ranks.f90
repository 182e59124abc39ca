! MPI_Test of Fortran for testing_ranks.c, by mpif.h and by the module mpi_f08; requests are Fortran's integers.
subroutine fortran_test(request, done)
    implicit none
    include 'mpif.h'
    integer :: request, done, error
    logical :: flag
    call MPI_TEST(request, flag, MPI_STATUS_IGNORE, error)
    done = merge(1, 0, flag)
end subroutine

subroutine f08_test(request, done)
    use mpi_f08
    implicit none
    integer :: request, done
    type(MPI_Request) :: handle
    logical :: flag
    handle%MPI_VAL = request
    call MPI_Test(handle, flag, MPI_STATUS_IGNORE)
    done = merge(1, 0, flag)
end subroutine
