//! Failures that are not ours, with the project responsible for each, and why. If such a test passes, the run
//! does not fail.

use super::over::Over;
use super::trees::Client;
use crate::results::Known;

const IMPROBE: &str = "ompi_mtl_portals4_improbe reads the source out of the status that the caller set to be ignored: a \
                       null pointer";

const EXACTLY: &str = "with several senders more than half of the messages may have come when it looks, and it wants exactly \
                       half";

const FREES: &str = "it frees the buffers of an operation before the fence that ends it, and the result arrives in memory \
                     that is in use again";

/// Returns the known failures of clients that are built for it.
pub(super) const fn over(over: Over) -> &'static [Known] {
    match over {
        Over::Portals => OVER_PORTALS,
        Over::Libfabric => OVER_LIBFABRIC,
    }
}

const OVER_LIBFABRIC: &[Known] = &[];

const OVER_PORTALS: &[Known] = &[
    Known {
        client: Client::Reference.name(),
        test: "test_abort_",
        owner: "the test",
        reason: "its second round waits with a handle that it has freed, and takes it for that of the queue allocated since",
    },
    Known {
        client: Client::Reference.name(),
        test: "test_manage_local_and_inc_uh_rlength",
        owner: "the test",
        reason: "it unlinks an entry after its AUTO_UNLINK",
    },
    Known {
        client: Client::Reference.name(),
        test: "test_search_delete_counter_",
        owner: "the test",
        reason: "it searches for messages after a barrier of the launcher, and waits for no acknowledgement of them",
    },
    Known {
        client: Client::Reference.name(),
        test: "test_LE_no_space_triggered",
        owner: "the test",
        reason: "rank 0 ends without a barrier, and the others' operations towards it fail",
    },
    Known {
        client: Client::Reference.name(),
        test: "test_ME_no_space_triggered",
        owner: "the test",
        reason: "rank 0 ends without a barrier, and the others' operations towards it fail",
    },
    Known {
        client: Client::Reference.name(),
        test: "test_LE_flowctl_nohdr",
        owner: "the test",
        reason: EXACTLY,
    },
    Known {
        client: Client::Reference.name(),
        test: "test_ME_flowctl_nohdr",
        owner: "the test",
        reason: EXACTLY,
    },
    Known {
        client: Client::OpenMpi.name(),
        test: "truncated",
        owner: "Open MPI",
        reason: "of a message that is cut its mtl fetches a rest of no bytes, and waits for replies to no requests (read_msg)",
    },
    Known {
        client: Client::OpenMpi.name(),
        test: "locks",
        owner: "Open MPI",
        reason: "osc/portals4 ends an exclusive lock by writing zero over the counts of those that try for a shared one, \
                 which leave it at minus one",
    },
    Known {
        client: Client::OpenMpi.name(),
        test: "flood",
        owner: "Open MPI",
        reason: "a rank in the barrier of coll/portals4 waits in PtlCTWait, makes no progress for the mtl and takes no \
                 part in leaving flow control; without that component (--mca coll ^portals4) it passes",
    },
    Known {
        client: Client::Mpi4py.name(),
        test: "test_cco_vec.testAlltoallwBottom",
        owner: "Open MPI",
        reason: "ompi_mtl_datatype_pack takes a contiguous type's buffer without its lower bound: with MPI_BOTTOM it \
                 sends from address 0",
    },
    Known {
        client: Client::Mpi4py.name(),
        test: "test_p2p_buf_matched.testIMProbe",
        owner: "Open MPI",
        reason: IMPROBE,
    },
    Known {
        client: Client::Mpi4py.name(),
        test: "test_p2p_buf_matched.testProbeRecv",
        owner: "Open MPI",
        reason: IMPROBE,
    },
    Known {
        client: Client::Mpi4py.name(),
        test: "test_p2p_obj.testManyISendAndRecv",
        owner: "the test",
        reason: "of six sends that one look did not find all done, it allows no later look to find some done",
    },
    Known {
        client: Client::Mpi4py.name(),
        test: "test_rma.testCompareAndSwap",
        owner: "the test",
        reason: FREES,
    },
    Known {
        client: Client::Mpi4py.name(),
        test: "test_rma.testFetchAndOp",
        owner: "the test",
        reason: FREES,
    },
    Known {
        client: Client::OpenShmem.name(),
        test: "threading",
        owner: "Sandia OpenSHMEM",
        reason: "shmem_transport_put_wait drains the queue without the lock that drain_eq gives back and takes, which \
                 stays locked",
    },
    Known {
        client: Client::Gasnet.name(),
        test: "testexit",
        owner: "the test",
        reason: "it wants the number of a way to exit",
    },
    Known {
        client: Client::Gasnet.name(),
        test: "testenv",
        owner: "the launcher",
        reason: "it wants arguments and variables that GASNet's own launcher sets",
    },
];
