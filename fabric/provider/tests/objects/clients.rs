//! What each client requests of fi_getinfo, recorded from its source, and what it requires of the answer.

use libfabric_sys::*;

use crate::alone::{run, run_with};
use crate::opened::hints;
use crate::{get, set};

/// A client's request.
struct Request {
    client: &'static str,
    level: Level,
    caps: u64,
    mode: u64,
    mr_mode: i32,
    threading: fi_threading,
    progress: fi_progress,
    av_type: fi_av_type,
    /// Of both halves.
    order: u64,
    tx_flags: u64,
    rx_flags: u64,
    cq_data_size: usize,
    resource_mgmt: fi_resource_mgmt,
}

const BOTH_CONTEXTS: u64 = FI_CONTEXT | FI_CONTEXT2;
const THREE: i32 = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
const COMMS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;

const NOTHING: Request = Request {
    client: "nothing",
    level: Level::new(1, 17),
    caps: 0,
    mode: 0,
    mr_mode: 0,
    threading: FI_THREAD_UNSPEC,
    progress: FI_PROGRESS_UNSPEC,
    av_type: FI_AV_UNSPEC,
    order: 0,
    tx_flags: 0,
    rx_flags: 0,
    cq_data_size: 0,
    resource_mgmt: FI_RM_UNSPEC,
};

const OPEN_MPI: Request = Request {
    client: "Open MPI 4.1.4, mtl/ofi",
    level: Level::new(1, 5),
    caps: FI_TAGGED | COMMS | FI_DIRECTED_RECV,
    mode: BOTH_CONTEXTS,
    threading: FI_THREAD_DOMAIN,
    av_type: FI_AV_MAP,
    order: FI_ORDER_SAS,
    tx_flags: FI_COMPLETION,
    rx_flags: FI_COMPLETION,
    cq_data_size: 4,
    resource_mgmt: FI_RM_ENABLED,
    ..NOTHING
};

const MPICH: Request = Request {
    client: "MPICH 5.0.1, messages",
    caps: FI_TAGGED | FI_DIRECTED_RECV | FI_MSG | FI_MULTI_RECV,
    mode: BOTH_CONTEXTS | FI_ASYNC_IOV | FI_RX_CQ_DATA,
    mr_mode: FI_MR_ENDPOINT,
    threading: FI_THREAD_DOMAIN,
    progress: FI_PROGRESS_MANUAL,
    av_type: FI_AV_TABLE,
    order: FI_ORDER_SAS
        | FI_ORDER_ATOMIC_RAR
        | FI_ORDER_ATOMIC_RAW
        | FI_ORDER_ATOMIC_WAR
        | FI_ORDER_ATOMIC_WAW,
    tx_flags: FI_COMPLETION | FI_DELIVERY_COMPLETE,
    rx_flags: FI_COMPLETION,
    cq_data_size: 4,
    resource_mgmt: FI_RM_ENABLED,
    ..NOTHING
};

/// Requests for messages, reads, writes and atomics, which are met.
const MET: &[Request] = &[
    OPEN_MPI,
    Request {
        client: "Open MPI 4.1.4, mtl/ofi, MPI_THREAD_MULTIPLE",
        threading: FI_THREAD_SAFE,
        ..OPEN_MPI
    },
    Request {
        client: "Open MPI 5.0.9, mtl/ofi",
        level: Level::new(1, 17),
        caps: OPEN_MPI.caps | FI_MSG,
        ..OPEN_MPI
    },
    MPICH,
    Request {
        client: "MPICH 5.0.1, completion",
        threading: FI_THREAD_COMPLETION,
        mr_mode: FI_MR_ENDPOINT | THREE,
        av_type: FI_AV_MAP,
        ..MPICH
    },
    Request {
        client: "MPICH, active messages alone",
        caps: FI_MSG | FI_MULTI_RECV,
        ..MPICH
    },
    Request {
        client: "GASNet-EX, its messages",
        level: Level::new(1, 5),
        caps: FI_MSG | FI_MULTI_RECV,
        mode: FI_CONTEXT,
        mr_mode: THREE | FI_MR_ENDPOINT,
        threading: FI_THREAD_SAFE,
        av_type: FI_AV_TABLE,
        tx_flags: FI_DELIVERY_COMPLETE,
        resource_mgmt: FI_RM_ENABLED,
        ..NOTHING
    },
    Request {
        client: "GASNet-EX",
        level: Level::new(1, 5),
        caps: FI_RMA | FI_MSG | FI_MULTI_RECV,
        mode: FI_CONTEXT,
        mr_mode: THREE | FI_MR_ENDPOINT,
        threading: FI_THREAD_SAFE,
        av_type: FI_AV_TABLE,
        tx_flags: FI_DELIVERY_COMPLETE,
        resource_mgmt: FI_RM_ENABLED,
        ..NOTHING
    },
    Request {
        client: "MPICH 5.0.1, without atomics",
        caps: MPICH.caps | FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE,
        ..MPICH
    },
    Request {
        client: "Open MPI 4.1.4, btl/ofi",
        level: Level::new(1, 5),
        caps: FI_RMA | FI_ATOMIC,
        mode: BOTH_CONTEXTS,
        mr_mode: THREE,
        av_type: FI_AV_MAP,
        tx_flags: FI_DELIVERY_COMPLETE,
        ..NOTHING
    },
    Request {
        client: "MPICH 5.0.1, all",
        caps: MPICH.caps | FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_ATOMICS,
        ..MPICH
    },
    Request {
        client: "SOS",
        level: Level::new(1, 5),
        caps: FI_RMA | FI_ATOMIC,
        threading: FI_THREAD_SAFE,
        tx_flags: FI_DELIVERY_COMPLETE,
        resource_mgmt: FI_RM_ENABLED,
        ..NOTHING
    },
    Request {
        client: "SOS, with counters of what peers do",
        caps: FI_RMA | FI_ATOMIC | FI_RMA_EVENT,
        mr_mode: FI_MR_RMA_EVENT,
        threading: FI_THREAD_SAFE,
        tx_flags: FI_DELIVERY_COMPLETE,
        resource_mgmt: FI_RM_ENABLED,
        ..NOTHING
    },
    Request {
        client: "fabtests, fi_rdm_atomic",
        caps: FI_MSG | FI_ATOMICS,
        mode: BOTH_CONTEXTS,
        mr_mode: FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_RAW | THREE,
        threading: FI_THREAD_DOMAIN,
        resource_mgmt: FI_RM_ENABLED,
        ..NOTHING
    },
    Request {
        client: "fabtests, fi_rma_bw",
        caps: FI_MSG | FI_RMA,
        mode: BOTH_CONTEXTS,
        mr_mode: FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_RAW | THREE,
        threading: FI_THREAD_DOMAIN,
        tx_flags: FI_DELIVERY_COMPLETE,
        resource_mgmt: FI_RM_ENABLED,
        ..NOTHING
    },
    Request {
        client: "fi_pingpong, messages",
        caps: FI_MSG,
        mode: BOTH_CONTEXTS | FI_MSG_PREFIX,
        mr_mode: FI_MR_LOCAL | THREE,
        ..NOTHING
    },
    Request {
        client: "fi_pingpong, tagged messages",
        caps: FI_TAGGED,
        mode: BOTH_CONTEXTS | FI_MSG_PREFIX,
        mr_mode: FI_MR_LOCAL | THREE,
        ..NOTHING
    },
    Request {
        client: "fabtests, fi_rdm_tagged_bw",
        caps: FI_TAGGED,
        mode: BOTH_CONTEXTS,
        mr_mode: FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_RAW | THREE,
        threading: FI_THREAD_DOMAIN,
        tx_flags: FI_DELIVERY_COMPLETE,
        resource_mgmt: FI_RM_ENABLED,
        ..NOTHING
    },
    Request {
        client: "a program that does not call",
        caps: FI_MSG,
        progress: FI_PROGRESS_AUTO,
        ..NOTHING
    },
];

/// Requests that want what is not offered, each with the hint that decides.
const REFUSED: &[(Request, &str)] = &[(
    Request {
        client: "Open MPI 5.0.9, mtl/ofi, with memory of devices",
        caps: OPEN_MPI.caps | FI_MSG | FI_HMEM,
        ..OPEN_MPI
    },
    "info.caps wants FI_HMEM",
)];

impl Request {
    fn hints(&self, library: &Library) -> InfoList {
        let mut hints = hints(library);
        set!(hints, caps = self.caps);
        set!(hints, mode = self.mode);
        set!(hints, ep_attr.r#type = FI_EP_RDM);
        set!(hints, domain_attr.mr_mode = self.mr_mode);
        set!(hints, domain_attr.threading = self.threading);
        set!(hints, domain_attr.control_progress = self.progress);
        set!(hints, domain_attr.data_progress = self.progress);
        set!(hints, domain_attr.av_type = self.av_type);
        set!(hints, domain_attr.cq_data_size = self.cq_data_size);
        set!(hints, domain_attr.resource_mgmt = self.resource_mgmt);
        set!(hints, tx_attr.msg_order = self.order);
        set!(hints, rx_attr.msg_order = self.order);
        set!(hints, tx_attr.op_flags = self.tx_flags);
        set!(hints, rx_attr.op_flags = self.rx_flags);
        hints
    }

    fn check(&self, info: &InfoList) {
        let client = self.client;
        assert_eq!(get!(info, caps) & self.caps, self.caps, "{client}");
        assert_eq!(get!(info, mode), 0, "{client}");
        let mr_mode = get!(info, domain_attr.mr_mode);
        assert_eq!(mr_mode & !self.mr_mode, 0, "{client}");
        assert!(mr_mode == 0 || mr_mode == THREE, "{client}: {mr_mode:#x}");
        if self.threading != FI_THREAD_UNSPEC {
            assert_eq!(get!(info, domain_attr.threading), self.threading, "{client}");
        }
        if self.progress != FI_PROGRESS_UNSPEC {
            assert_eq!(
                get!(info, domain_attr.control_progress),
                self.progress,
                "{client}"
            );
            assert_eq!(get!(info, domain_attr.data_progress), self.progress, "{client}");
        }
        if self.av_type != FI_AV_UNSPEC {
            assert_eq!(get!(info, domain_attr.av_type), self.av_type, "{client}");
        }
        assert_eq!(get!(info, tx_attr.msg_order) & self.order, self.order, "{client}");
        assert_eq!(get!(info, rx_attr.msg_order) & self.order, self.order, "{client}");
        assert_eq!(get!(info, tx_attr.op_flags), self.tx_flags, "{client}");
        assert_eq!(get!(info, rx_attr.op_flags), self.rx_flags, "{client}");
        assert!(
            get!(info, domain_attr.cq_data_size) >= self.cq_data_size.max(8),
            "{client}"
        );
        assert_eq!(get!(info, domain_attr.resource_mgmt), FI_RM_ENABLED, "{client}");
        // What they read without requesting it.
        assert_eq!(get!(info, ep_attr.mem_tag_format), u64::MAX, "{client}");
        assert!(get!(info, ep_attr.max_msg_size) >= 1 << 30, "{client}");
        assert!(get!(info, tx_attr.inject_size) >= 64, "{client}");
        assert_eq!(get!(info, domain_attr.max_ep_tx_ctx), 1, "{client}");
        assert!(get!(info, nic).is_null(), "{client}");
    }
}

#[test]
fn clients_get_what_they_request() {
    run("clients::clients_get_what_they_request", |library| {
        for request in MET {
            let hints = request.hints(&library);
            let info = library
                .getinfo(request.level.min(library.level()), None, None, 0, Some(&hints))
                .unwrap_or_else(|error| panic!("{}: {error}", request.client));
            request.check(&info);
        }
    });
}

#[test]
fn clients_of_what_is_not_offered_are_refused_and_the_hint_is_named() {
    let test = "clients::clients_of_what_is_not_offered_are_refused_and_the_hint_is_named";
    let printed = run_with(test, &[], |library| {
        for (request, _) in REFUSED {
            let hints = request.hints(&library);
            let level = request.level.min(library.level());
            let error = library
                .getinfo(level, None, None, 0, Some(&hints))
                .expect_err(request.client);
            assert_eq!(error.number, FI_ENODATA, "{}", request.client);
        }
    });
    for (request, line) in REFUSED {
        if let Some(printed) = &printed {
            assert!(
                printed.contains(&format!("the hint {line}")),
                "{}: {printed}",
                request.client
            );
        }
    }
}
