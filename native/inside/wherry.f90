! wherry: questions and hints of a running MPI program to Wherry; see wherry.h, whose functions have the same names.
!
!   mpif90 -o program $(wherry inside fortran) program.f90
!
! Functions return WHERRY_OK, WHERRY_OUTSIDE (the program does not run under Wherry) or a negative WHERRY_E_...
module wherry
    use, intrinsic :: iso_c_binding
    implicit none
    private

    integer, parameter, public :: WHERRY_OK = 0, WHERRY_OUTSIDE = 1
    integer, parameter, public :: WHERRY_E_ARGUMENT = -1, WHERRY_E_REFUSED = -2, WHERRY_E_FAILED = -3
    integer, parameter, public :: WHERRY_E_DENIED = -4, WHERRY_E_BUSY = -5, WHERRY_E_UNREACHABLE = -6
    integer, parameter, public :: WHERRY_E_SYSTEM = -7
    integer, parameter, public :: WHERRY_NAME = 128

    type, public :: wherry_place
        character(len=WHERRY_NAME) :: job = '', cluster = '', node = '', host = '', site = ''
        integer :: rank = -1, ranks = 0
    end type

    type, public :: wherry_host
        character(len=WHERRY_NAME) :: name = '', site = ''
        real(c_double) :: cores = 0, free_cores = 0, load = -1, speed = 1
        integer(c_int64_t) :: memory = 0, free_memory = 0
        integer :: nodes = 0
        logical :: usable = .false.
    end type

    type, bind(C) :: c_place
        character(kind=c_char) :: job(WHERRY_NAME), cluster(WHERRY_NAME), node(WHERRY_NAME), host(WHERRY_NAME), &
                                  site(WHERRY_NAME)
        integer(c_int) :: rank, ranks
    end type

    type, bind(C) :: c_host
        character(kind=c_char) :: name(WHERRY_NAME), site(WHERRY_NAME)
        real(c_double) :: cores, free_cores, load, speed
        integer(c_int64_t) :: memory, free_memory
        integer(c_int) :: nodes, usable
    end type

    interface
        integer(c_int) function c_active() bind(C, name='wherry_active')
            import :: c_int
        end function
        type(c_ptr) function c_error() bind(C, name='wherry_error')
            import :: c_ptr
        end function
        integer(c_int) function c_where(place) bind(C, name='wherry_where')
            import :: c_int, c_place
            type(c_place), intent(out) :: place
        end function
        integer(c_int) function c_where_rank(rank, place) bind(C, name='wherry_where_rank')
            import :: c_int, c_place
            integer(c_int), value :: rank
            type(c_place), intent(out) :: place
        end function
        integer(c_int) function c_hosts(hosts, room, count) bind(C, name='wherry_hosts')
            import :: c_int, c_host
            type(c_host), intent(out) :: hosts(*)
            integer(c_int), value :: room
            integer(c_int), intent(out) :: count
        end function
        integer(c_int) function c_move(host) bind(C, name='wherry_move')
            import :: c_int, c_char
            character(kind=c_char), intent(in) :: host(*)
        end function
        integer(c_int) function c_move_rank(rank, host) bind(C, name='wherry_move_rank')
            import :: c_int, c_char
            integer(c_int), value :: rank
            character(kind=c_char), intent(in) :: host(*)
        end function
        integer(c_int) function c_move_node(node, host) bind(C, name='wherry_move_node')
            import :: c_int, c_char
            character(kind=c_char), intent(in) :: node(*), host(*)
        end function
        integer(c_int) function c_when_cheap(host, downtime, within) bind(C, name='wherry_move_when_cheap')
            import :: c_int, c_ptr, c_double
            type(c_ptr), value :: host
            real(c_double), value :: downtime, within
        end function
        integer(c_int) function c_balance(moved) bind(C, name='wherry_balance')
            import :: c_int
            integer(c_int), intent(out) :: moved
        end function
        integer(c_int) function c_phase_begin(name, critical) bind(C, name='wherry_phase_begin')
            import :: c_int, c_char
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int), value :: critical
        end function
        integer(c_int) function c_phase_end() bind(C, name='wherry_phase_end')
            import :: c_int
        end function
        integer(c_int) function c_iterations_left(iterations) bind(C, name='wherry_iterations_left')
            import :: c_int, c_long
            integer(c_long), value :: iterations
        end function
        integer(c_int) function c_expected(seconds) bind(C, name='wherry_expected')
            import :: c_int, c_double
            real(c_double), value :: seconds
        end function
        integer(c_size_t) function c_strlen(text) bind(C, name='strlen')
            import :: c_size_t, c_ptr
            type(c_ptr), value :: text
        end function
    end interface

    public :: wherry_active, wherry_error, wherry_where, wherry_where_rank, wherry_hosts
    public :: wherry_move, wherry_move_rank, wherry_move_node, wherry_move_when_cheap, wherry_balance
    public :: wherry_phase_begin, wherry_phase_end, wherry_iterations_left, wherry_expected

contains

    logical function wherry_active()
        wherry_active = c_active() /= 0
    end function

    ! The reason of the last error, in words.
    subroutine wherry_error(text)
        character(len=*), intent(out) :: text
        character(kind=c_char), pointer :: said(:)
        type(c_ptr) :: at
        integer :: i

        at = c_error()
        call c_f_pointer(at, said, [int(c_strlen(at))])
        text = ''
        do i = 1, min(len(text), size(said))
            text(i:i) = said(i)
        end do
    end subroutine

    integer function wherry_where(place)
        type(wherry_place), intent(out) :: place
        type(c_place) :: found

        wherry_where = c_where(found)
        if (wherry_where == WHERRY_OK) call read_place(found, place)
    end function

    integer function wherry_where_rank(rank, place)
        integer, intent(in) :: rank
        type(wherry_place), intent(out) :: place
        type(c_place) :: found

        wherry_where_rank = c_where_rank(int(rank, c_int), found)
        if (wherry_where_rank == WHERRY_OK) call read_place(found, place)
    end function

    ! Fills as many as there is room for; count is how many hosts there are.
    integer function wherry_hosts(hosts, count)
        type(wherry_host), intent(inout) :: hosts(:)
        integer, intent(out) :: count
        type(c_host), allocatable :: found(:)
        integer(c_int) :: number
        integer :: i

        allocate (found(max(1, size(hosts))))
        number = 0
        wherry_hosts = c_hosts(found, int(size(hosts), c_int), number)
        count = number
        if (wherry_hosts /= WHERRY_OK) return
        do i = 1, min(count, size(hosts))
            hosts(i)%name = text_of(found(i)%name)
            hosts(i)%site = text_of(found(i)%site)
            hosts(i)%cores = found(i)%cores
            hosts(i)%free_cores = found(i)%free_cores
            hosts(i)%load = found(i)%load
            hosts(i)%speed = found(i)%speed
            hosts(i)%memory = found(i)%memory
            hosts(i)%free_memory = found(i)%free_memory
            hosts(i)%nodes = found(i)%nodes
            hosts(i)%usable = found(i)%usable /= 0
        end do
    end function

    integer function wherry_move(host)
        character(len=*), intent(in) :: host
        wherry_move = c_move(c_text(host))
    end function

    integer function wherry_move_rank(rank, host)
        integer, intent(in) :: rank
        character(len=*), intent(in) :: host
        wherry_move_rank = c_move_rank(int(rank, c_int), c_text(host))
    end function

    integer function wherry_move_node(node, host)
        character(len=*), intent(in) :: node, host
        wherry_move_node = c_move_node(c_text(node), c_text(host))
    end function

    ! An empty host leaves the choice to the daemon.
    integer function wherry_move_when_cheap(host, downtime, within)
        character(len=*), intent(in) :: host
        real(c_double), intent(in) :: downtime, within
        character(kind=c_char), target :: name(len_trim(host) + 1)

        name = c_text(host)
        if (len_trim(host) == 0) then
            wherry_move_when_cheap = c_when_cheap(c_null_ptr, downtime, within)
        else
            wherry_move_when_cheap = c_when_cheap(c_loc(name), downtime, within)
        end if
    end function

    integer function wherry_balance(moved)
        integer, intent(out) :: moved
        integer(c_int) :: number

        number = 0
        wherry_balance = c_balance(number)
        moved = number
    end function

    integer function wherry_phase_begin(name, critical)
        character(len=*), intent(in) :: name
        logical, intent(in) :: critical
        wherry_phase_begin = c_phase_begin(c_text(name), merge(1_c_int, 0_c_int, critical))
    end function

    integer function wherry_phase_end()
        wherry_phase_end = c_phase_end()
    end function

    integer function wherry_iterations_left(iterations)
        integer, intent(in) :: iterations
        wherry_iterations_left = c_iterations_left(int(iterations, c_long))
    end function

    integer function wherry_expected(seconds)
        real(c_double), intent(in) :: seconds
        wherry_expected = c_expected(seconds)
    end function

    subroutine read_place(found, place)
        type(c_place), intent(in) :: found
        type(wherry_place), intent(out) :: place

        place%job = text_of(found%job)
        place%cluster = text_of(found%cluster)
        place%node = text_of(found%node)
        place%host = text_of(found%host)
        place%site = text_of(found%site)
        place%rank = found%rank
        place%ranks = found%ranks
    end subroutine

    pure function c_text(text) result(characters)
        character(len=*), intent(in) :: text
        character(kind=c_char) :: characters(len_trim(text) + 1)
        integer :: i

        do i = 1, len_trim(text)
            characters(i) = text(i:i)
        end do
        characters(len_trim(text) + 1) = c_null_char
    end function

    pure function text_of(characters) result(text)
        character(kind=c_char), intent(in) :: characters(:)
        character(len=WHERRY_NAME) :: text
        integer :: i

        text = ''
        do i = 1, size(characters)
            if (characters(i) == c_null_char) exit
            text(i:i) = characters(i)
        end do
    end function
end module
