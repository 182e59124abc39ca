! As spawn_calls.c, by the module mpi, or by mpi_f08 where MPI_F08 is defined.
program spawn_calls
#ifdef MPI_F08
    use mpi_f08
#else
    use mpi
#endif
    implicit none
#ifdef MPI_F08
    type(MPI_Info) :: info, both(2)
    type(MPI_Comm) :: made
#else
    integer :: info, both(2), made
#endif
    integer :: processes(2), ierror, codes(8)
    character(8) :: commands(2)

    call MPI_Init(ierror)
    call MPI_Info_create(info, ierror)
    call MPI_Info_set(info, 'host', 'a 1,b/1', ierror)
    call MPI_Info_set(info, 'wdir', '/tmp', ierror)
    processes = [2, 3]
    commands = ['a       ', 'b       ']
    both = [MPI_INFO_NULL, info]
    call MPI_Comm_spawn('a', MPI_ARGV_NULL, 4, MPI_INFO_NULL, 1, MPI_COMM_WORLD, made, codes, ierror)
    call MPI_Comm_spawn('a', MPI_ARGV_NULL, 5, info, 1, MPI_COMM_WORLD, made, codes, ierror)
    call MPI_Comm_spawn_multiple(2, commands, MPI_ARGVS_NULL, processes, both, 1, MPI_COMM_WORLD, made, codes, ierror)
    call MPI_Info_free(info, ierror)
    call MPI_Finalize(ierror)
end program
