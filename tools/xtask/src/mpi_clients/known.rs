//! Failures that are not ours, with the project responsible for each, and why. If such a test passes, the run
//! does not fail.

use crate::results::Known;

const SYNCHRONOUS: &str =
    "a synchronous send that is matched by MPI_Mprobe and MPI_Mrecv is never answered over mtl/ofi";

const ATOMICS: &str = "btl/ofi ends the job at an atomic operation that it does not know, and 4.1.4 at a \
                       compare-and-swap; over sockets by btl/ofi as well";

pub(super) const KNOWN: &[Known] = &[
    Known {
        client: "mpich-4.1",
        test: "test_comm_inter",
        owner: "MPICH",
        reason: "MPI_Comm_split_type of an intercommunicator reads a null pointer; over tcp as well",
    },
    Known {
        client: "mpich-",
        test: "test_comm_topo",
        owner: "MPICH",
        reason: "with two ranks, a rank that is a neighbour twice is counted wrongly by MPI_Dist_graph_create; over tcp as well",
    },
    Known {
        client: "mpich-5.0",
        test: "test_mpiabi",
        owner: "MPICH",
        reason: "MPI_Abi_get_fortran_info has no answer for several types of Fortran; over tcp as well",
    },
    Known {
        client: "openmpi-4.1.4",
        test: "test_p2p_obj",
        owner: "Open MPI",
        reason: "MPI_Cancel of a send: a segmentation fault; over tcp as well",
    },
    Known {
        client: "openmpi-4.1",
        test: "test_p2p_obj",
        owner: "Open MPI",
        reason: SYNCHRONOUS,
    },
    Known {
        client: "openmpi-4.1.4",
        test: "test_cco_vec",
        owner: "Open MPI",
        reason: "MPI_Alltoallw with MPI_BOTTOM sends from address 0: a segmentation fault; over tcp as well",
    },
    Known {
        client: "openmpi-4.1",
        test: "test_util_pkl5",
        owner: "Open MPI",
        reason: SYNCHRONOUS,
    },
    Known {
        client: "openmpi-4.1",
        test: "test_p2p_buf",
        owner: "Open MPI",
        reason: "MPI_Cancel of a synchronous send to oneself is MPI_ERR_OTHER over mtl/ofi; over tcp as well",
    },
    // With it test_rma_nb.
    Known {
        client: "openmpi-4.1",
        test: "test_rma",
        owner: "Open MPI",
        reason: ATOMICS,
    },
    Known {
        client: "openmpi-4.1",
        test: "test_dynproc",
        owner: "Open MPI",
        reason: "with four ranks MPI_Comm_join does not end; over tcp as well",
    },
    Known {
        client: "openmpi-5.0",
        test: "test_ulfm",
        owner: "Open MPI",
        reason: "MPIX_Comm_revoke does nothing where mpirun was started without --with-ft; over tcp as well",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Row, Table};

    #[test]
    fn a_crash_of_one_release_is_not_explained_by_a_bug_of_all() {
        let mut table = Table::new("provider", KNOWN);
        for client in ["openmpi-4.1.4-system", "openmpi-4.1.8"] {
            let mut row = Row::new(client, "doorbell".to_owned(), 2);
            row.fail("test_p2p_obj", "exit status: 139".to_owned());
            table.add(row);
        }
        assert!(table.is_good());
        let shown = table.markdown();
        let crash = "MPI_Cancel of a send: a segmentation fault; over tcp as well";
        for (client, reason) in [("openmpi-4.1.4-system", crash), ("openmpi-4.1.8", SYNCHRONOUS)] {
            let line = format!("| {client} | test_p2p_obj | Open MPI | {reason} |");
            assert!(shown.contains(&line), "{shown}");
        }
    }

    /// The first that fits is taken.
    #[test]
    fn no_reason_is_hidden_behind_a_general_one() {
        for (at, known) in KNOWN.iter().enumerate() {
            let hides = |before: &&Known| {
                known.client.starts_with(before.client) && known.test.starts_with(before.test)
            };
            let before = KNOWN[..at].iter().find(hides);
            assert!(before.is_none(), "{known:?} behind {before:?}");
        }
    }
}
