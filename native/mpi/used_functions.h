/*
 * used_functions: the functions of MPI that we call, with their places in struct mpi. USED(name, place) is put for each.
 */
#ifndef WHERRY_MPI_USED_FUNCTIONS_H
#define WHERRY_MPI_USED_FUNCTIONS_H

/* For counting. */
#define FUNCTIONS_OF_ALL(USED)                                                                                         \
    USED(Comm_rank, comm_rank)                                                                                         \
    USED(Comm_size, comm_size)                                                                                         \
    USED(Comm_remote_size, comm_remote_size)                                                                           \
    USED(Comm_group, comm_group)                                                                                       \
    USED(Comm_remote_group, comm_remote_group)                                                                         \
    USED(Comm_test_inter, comm_test_inter)                                                                             \
    USED(Type_size_x, type_size)                                                                                       \
    USED(Group_free, group_free)                                                                                       \
    USED(Query_thread, query_thread)                                                                                   \
    USED(Group_translate_ranks, group_translate_ranks)

#define FUNCTIONS_OF_COLLECTIVES(USED)                                                                                 \
    USED(Barrier, barrier)                                                                                             \
    USED(Comm_free, comm_free)                                                                                         \
    USED(Comm_get_parent, get_parent)                                                                                  \
    USED(Op_commutative, op_commutative)                                                                               \
    USED(Waitall, waitall)                                                                                             \
    USED(Type_get_extent, type_get_extent)                                                                             \
    USED(Type_get_true_extent, type_get_true_extent)                                                                   \
    USED(Comm_split, comm_split)                                                                                       \
    USED(Pack_size, pack_size)                                                                                         \
    USED(Bcast, bcast)                                                                                                 \
    USED(Reduce_local, reduce_local)                                                                                   \
    USED(Type_get_envelope, type_get_envelope)                                                                         \
    USED(Sendrecv, sendrecv)                                                                                           \
    USED(Isend, isend)                                                                                                 \
    USED(Irecv, irecv)                                                                                                 \
    USED(Reduce, reduce)                                                                                               \
    USED(Pack, pack)                                                                                                   \
    USED(Unpack, unpack)                                                                                               \
    USED(Allreduce, allreduce)                                                                                         \
    USED(Errhandler_free, errhandler_free)                                                                             \
    USED(Comm_get_errhandler, get_errhandler)                                                                          \
    USED(Comm_set_errhandler, set_errhandler)                                                                          \
    USED(Comm_call_errhandler, call_errhandler)                                                                        \
    USED(Group_incl, group_incl)                                                                                       \
    USED(Comm_create_group, comm_create_group)                                                                         \
    USED(Gather, gather)                                                                                               \
    USED(Gatherv, gatherv)                                                                                             \
    USED(Scatter, scatter)                                                                                             \
    USED(Scatterv, scatterv)                                                                                           \
    USED(Scan, scan)                                                                                                   \
    USED(Exscan, exscan)                                                                                               \
    USED(Reduce_scatter, reduce_scatter)                                                                               \
    USED(Allgatherv, allgatherv)                                                                                       \
    USED(Alltoallv, alltoallv)

#endif
