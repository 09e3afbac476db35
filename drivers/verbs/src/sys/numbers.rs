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
    QPT_UD: c_int as IBV_QPT_UD = 4;
    RESET: c_int as IBV_QPS_RESET = 0;
    INIT: c_int as IBV_QPS_INIT = 1;
    RTR: c_int as IBV_QPS_RTR = 2;
    RTS: c_int as IBV_QPS_RTS = 3;
    #[cfg(test)]
    ERR: c_int as IBV_QPS_ERR = 6;
    HAS_STATE: c_int as IBV_QP_STATE = 1 << 0;
    HAS_PKEY_INDEX: c_int as IBV_QP_PKEY_INDEX = 1 << 4;
    HAS_PORT: c_int as IBV_QP_PORT = 1 << 5;
    HAS_QKEY: c_int as IBV_QP_QKEY = 1 << 6;
    HAS_SQ_PSN: c_int as IBV_QP_SQ_PSN = 1 << 16;
    LOCAL_WRITE: c_int as IBV_ACCESS_LOCAL_WRITE = 1;
    WR_SEND: c_int as IBV_WR_SEND = 2;
    SEND_SIGNALED: c_uint as IBV_SEND_SIGNALED = 2;
    SEND_INLINE: c_uint as IBV_SEND_INLINE = 8;
    #[cfg(test)]
    WC_RECV: c_int as IBV_WC_RECV = 128;
    WC_WITH_GRH: c_uint as IBV_WC_GRH = 1;
    SUCCESS: c_int as IBV_WC_SUCCESS = 0;
    #[cfg(test)]
    WR_FLUSH_ERR: c_int as IBV_WC_WR_FLUSH_ERR = 5;
    EVENT_DEVICE_FATAL: c_int as IBV_EVENT_DEVICE_FATAL = 8;
    EVENT_PORT_ACTIVE: c_int as IBV_EVENT_PORT_ACTIVE = 9;
    #[cfg(test)]
    EVENT_PORT_ERR: c_int as IBV_EVENT_PORT_ERR = 10;
    EVENT_SM_CHANGE: c_int as IBV_EVENT_SM_CHANGE = 13;
    EVENT_CLIENT_REREGISTER: c_int as IBV_EVENT_CLIENT_REREGISTER = 17;
    EVENT_GID_CHANGE: c_int as IBV_EVENT_GID_CHANGE = 18;
}
