//! The numbers of `infiniband/verbs.h` that are used here.

use std::ffi::{c_int, c_uint};

numbers! {
    NODE_CA: c_int as IBV_NODE_CA = 1;
    NODE_RNIC: c_int as IBV_NODE_RNIC = 4;
    #[cfg(test)]
    TRANSPORT_IB: c_int as IBV_TRANSPORT_IB = 0;
    TRANSPORT_IWARP: c_int as IBV_TRANSPORT_IWARP = 1;
    TRANSPORT_USNIC: c_int as IBV_TRANSPORT_USNIC = 2;
    TRANSPORT_USNIC_UDP: c_int as IBV_TRANSPORT_USNIC_UDP = 3;
    LINK_LAYER_ETHERNET: u8 as IBV_LINK_LAYER_ETHERNET = 2;
    PORT_DOWN: c_int as IBV_PORT_DOWN = 1;
    PORT_INIT: c_int as IBV_PORT_INIT = 2;
    PORT_ARMED: c_int as IBV_PORT_ARMED = 3;
    PORT_ACTIVE: c_int as IBV_PORT_ACTIVE = 4;
    PORT_ACTIVE_DEFER: c_int as IBV_PORT_ACTIVE_DEFER = 5;
    MTU_256: c_int as IBV_MTU_256 = 1;
    MTU_4096: c_int as IBV_MTU_4096 = 5;
    #[cfg(test)]
    GID_ROCE_V2: u32 as IBV_GID_TYPE_ROCE_V2 = 2;
    FLAG_GRH_REQUIRED: u8 as IBV_QPF_GRH_REQUIRED = 1;
    QPT_RC: c_int as IBV_QPT_RC = 2;
    QPT_UD: c_int as IBV_QPT_UD = 4;
    RESET: c_int as IBV_QPS_RESET = 0;
    INIT: c_int as IBV_QPS_INIT = 1;
    RTR: c_int as IBV_QPS_RTR = 2;
    RTS: c_int as IBV_QPS_RTS = 3;
    ERR: c_int as IBV_QPS_ERR = 6;
    HAS_STATE: c_int as IBV_QP_STATE = 1 << 0;
    HAS_ACCESS_FLAGS: c_int as IBV_QP_ACCESS_FLAGS = 1 << 3;
    HAS_PKEY_INDEX: c_int as IBV_QP_PKEY_INDEX = 1 << 4;
    HAS_PORT: c_int as IBV_QP_PORT = 1 << 5;
    HAS_QKEY: c_int as IBV_QP_QKEY = 1 << 6;
    HAS_AV: c_int as IBV_QP_AV = 1 << 7;
    HAS_PATH_MTU: c_int as IBV_QP_PATH_MTU = 1 << 8;
    HAS_TIMEOUT: c_int as IBV_QP_TIMEOUT = 1 << 9;
    HAS_RETRY_CNT: c_int as IBV_QP_RETRY_CNT = 1 << 10;
    HAS_RNR_RETRY: c_int as IBV_QP_RNR_RETRY = 1 << 11;
    HAS_RQ_PSN: c_int as IBV_QP_RQ_PSN = 1 << 12;
    HAS_MAX_QP_RD_ATOMIC: c_int as IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
    HAS_MIN_RNR_TIMER: c_int as IBV_QP_MIN_RNR_TIMER = 1 << 15;
    HAS_SQ_PSN: c_int as IBV_QP_SQ_PSN = 1 << 16;
    HAS_MAX_DEST_RD_ATOMIC: c_int as IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
    HAS_DEST_QPN: c_int as IBV_QP_DEST_QPN = 1 << 20;
    HAS_SRQ_LIMIT: c_int as IBV_SRQ_LIMIT = 1 << 1;
    LOCAL_WRITE: c_int as IBV_ACCESS_LOCAL_WRITE = 1;
    REMOTE_WRITE: c_int as IBV_ACCESS_REMOTE_WRITE = 2;
    REMOTE_READ: c_int as IBV_ACCESS_REMOTE_READ = 4;
    REMOTE_ATOMIC: c_int as IBV_ACCESS_REMOTE_ATOMIC = 8;
    MW_BIND: c_int as IBV_ACCESS_MW_BIND = 16;
    FORK_UNNEEDED: c_int as IBV_FORK_UNNEEDED = 2;
    CAN_MW_TYPE_2B: c_uint as IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24;
    MW_TYPE_2: c_int as IBV_MW_TYPE_2 = 2;
    ATOMIC_NONE: c_int as IBV_ATOMIC_NONE = 0;
    #[cfg(test)]
    ATOMIC_HCA: c_int as IBV_ATOMIC_HCA = 1;
    WR_RDMA_WRITE: c_int as IBV_WR_RDMA_WRITE = 0;
    WR_SEND: c_int as IBV_WR_SEND = 2;
    WR_RDMA_READ: c_int as IBV_WR_RDMA_READ = 4;
    WR_COMPARE_SWAP: c_int as IBV_WR_ATOMIC_CMP_AND_SWP = 5;
    WR_FETCH_ADD: c_int as IBV_WR_ATOMIC_FETCH_AND_ADD = 6;
    WR_LOCAL_INV: c_int as IBV_WR_LOCAL_INV = 7;
    WR_BIND_MW: c_int as IBV_WR_BIND_MW = 8;
    SEND_SIGNALED: c_uint as IBV_SEND_SIGNALED = 2;
    SEND_INLINE: c_uint as IBV_SEND_INLINE = 8;
    #[cfg(test)]
    WC_RECV: c_int as IBV_WC_RECV = 128;
    WC_WITH_GRH: c_uint as IBV_WC_GRH = 1;
    SUCCESS: c_int as IBV_WC_SUCCESS = 0;
    LOC_LEN_ERR: c_int as IBV_WC_LOC_LEN_ERR = 1;
    LOC_QP_OP_ERR: c_int as IBV_WC_LOC_QP_OP_ERR = 2;
    LOC_PROT_ERR: c_int as IBV_WC_LOC_PROT_ERR = 4;
    WR_FLUSH_ERR: c_int as IBV_WC_WR_FLUSH_ERR = 5;
    MW_BIND_ERR: c_int as IBV_WC_MW_BIND_ERR = 6;
    REM_INV_REQ_ERR: c_int as IBV_WC_REM_INV_REQ_ERR = 9;
    REM_ACCESS_ERR: c_int as IBV_WC_REM_ACCESS_ERR = 10;
    RETRY_EXC_ERR: c_int as IBV_WC_RETRY_EXC_ERR = 12;
    RNR_RETRY_EXC_ERR: c_int as IBV_WC_RNR_RETRY_EXC_ERR = 13;
    EVENT_CQ_ERR: c_int as IBV_EVENT_CQ_ERR = 0;
    EVENT_QP_FATAL: c_int as IBV_EVENT_QP_FATAL = 1;
    EVENT_QP_REQ_ERR: c_int as IBV_EVENT_QP_REQ_ERR = 2;
    EVENT_QP_ACCESS_ERR: c_int as IBV_EVENT_QP_ACCESS_ERR = 3;
    EVENT_COMM_EST: c_int as IBV_EVENT_COMM_EST = 4;
    EVENT_PATH_MIG_ERR: c_int as IBV_EVENT_PATH_MIG_ERR = 7;
    EVENT_DEVICE_FATAL: c_int as IBV_EVENT_DEVICE_FATAL = 8;
    EVENT_PORT_ACTIVE: c_int as IBV_EVENT_PORT_ACTIVE = 9;
    #[cfg(test)]
    EVENT_PORT_ERR: c_int as IBV_EVENT_PORT_ERR = 10;
    #[cfg(test)]
    EVENT_PKEY_CHANGE: c_int as IBV_EVENT_PKEY_CHANGE = 12;
    EVENT_SM_CHANGE: c_int as IBV_EVENT_SM_CHANGE = 13;
    EVENT_SRQ_ERR: c_int as IBV_EVENT_SRQ_ERR = 14;
    EVENT_SRQ_LIMIT_REACHED: c_int as IBV_EVENT_SRQ_LIMIT_REACHED = 15;
    EVENT_QP_LAST_WQE_REACHED: c_int as IBV_EVENT_QP_LAST_WQE_REACHED = 16;
    EVENT_CLIENT_REREGISTER: c_int as IBV_EVENT_CLIENT_REREGISTER = 17;
    EVENT_GID_CHANGE: c_int as IBV_EVENT_GID_CHANGE = 18;
    EVENT_WQ_FATAL: c_int as IBV_EVENT_WQ_FATAL = 19;
}
