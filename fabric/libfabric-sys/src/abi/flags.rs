//! Capabilities, flags of operations, modes and orders, which are bits of 64-bit words.
//!
//! Sources: `rdma/fabric.h`, `rdma/fi_atomic.h`; fi_getinfo(3), fi_endpoint(3), fi_msg(3), fi_tagged(3). One
//! number may have several names, by the word that it is in; what bits stood for in older releases is in
//! [`bits`](crate::bits).

constants! {
    u64 {
        FI_MSG = 1 << 1;
        FI_RMA = 1 << 2;
        FI_TAGGED = 1 << 3;
        FI_ATOMIC = 1 << 4;
        FI_ATOMICS = FI_ATOMIC;
        FI_MULTICAST = 1 << 5;
        FI_COLLECTIVE = 1 << 6;
        FI_READ = 1 << 8;
        FI_WRITE = 1 << 9;
        FI_RECV = 1 << 10;
        FI_SEND = 1 << 11;
        FI_TRANSMIT = FI_SEND;
        FI_REMOTE_READ = 1 << 12;
        FI_REMOTE_WRITE = 1 << 13;
        FI_MULTI_RECV = 1 << 16;
        FI_REMOTE_CQ_DATA = 1 << 17;
        FI_MORE = 1 << 18;
        FI_PEEK = 1 << 19;
        FI_TRIGGER = 1 << 20;
        FI_FENCE = 1 << 21;
        FI_COMPLETION = 1 << 24;
        FI_EVENT = FI_COMPLETION;
        FI_INJECT = 1 << 25;
        FI_INJECT_COMPLETE = 1 << 26;
        FI_TRANSMIT_COMPLETE = 1 << 27;
        FI_DELIVERY_COMPLETE = 1 << 28;
        FI_AFFINITY = 1 << 29;
        FI_COMMIT_COMPLETE = 1 << 30;
        FI_MATCH_COMPLETE = 1 << 31;
        FI_RESCAN = 1 << 35;
        FI_PEER_TRANSFER = 1 << 36;
        FI_AV_USER_ID = 1 << 41;
        FI_FIREWALL_ADDR = 1 << 42;
        FI_PEER = 1 << 43;
        FI_XPU = 1 << 44;
        FI_TAGGED_DIRECTED_RECV = 1 << 45;
        FI_TAGGED_MULTI_RECV = 1 << 46;
        FI_HMEM = 1 << 47;
        FI_EXACT_DIRECTED_RECV = 1 << 48;
        FI_RMA_PMEM = 1 << 49;
        FI_SOURCE_ERR = 1 << 50;
        FI_LOCAL_COMM = 1 << 51;
        FI_REMOTE_COMM = 1 << 52;
        FI_SHARED_AV = 1 << 53;
        FI_PROV_ATTR_ONLY = 1 << 54;
        FI_NUMERICHOST = 1 << 55;
        FI_RMA_EVENT = 1 << 56;
        FI_SOURCE = 1 << 57;
        FI_NAMED_RX_CTX = 1 << 58;
        FI_DIRECTED_RECV = 1 << 59;
    }
    u64 {
        FI_CLAIM = 1 << 59;
        FI_DISCARD = 1 << 58;
        FI_AUTH_KEY = 1 << 57;
        FI_SELECTIVE_COMPLETION = 1 << 59;
        FI_FETCH_ATOMIC = 1 << 58;
        FI_COMPARE_ATOMIC = 1 << 59;
    }
    u64 {
        FI_CONTEXT = 1 << 59;
        FI_MSG_PREFIX = 1 << 58;
        FI_ASYNC_IOV = 1 << 57;
        FI_RX_CQ_DATA = 1 << 56;
        FI_LOCAL_MR = 1 << 55;
        FI_CONTEXT2 = 1 << 52;
    }
    u64 {
        FI_ORDER_NONE = 0;
        FI_ORDER_RAR = 1 << 0;
        FI_ORDER_RAW = 1 << 1;
        FI_ORDER_RAS = 1 << 2;
        FI_ORDER_WAR = 1 << 3;
        FI_ORDER_WAW = 1 << 4;
        FI_ORDER_WAS = 1 << 5;
        FI_ORDER_SAR = 1 << 6;
        FI_ORDER_SAW = 1 << 7;
        FI_ORDER_SAS = 1 << 8;
        FI_ORDER_STRICT = 0x1ff;
        FI_ORDER_RMA_RAR = 1 << 32;
        FI_ORDER_RMA_RAW = 1 << 33;
        FI_ORDER_RMA_WAR = 1 << 34;
        FI_ORDER_RMA_WAW = 1 << 35;
        FI_ORDER_ATOMIC_RAR = 1 << 36;
        FI_ORDER_ATOMIC_RAW = 1 << 37;
        FI_ORDER_ATOMIC_WAR = 1 << 38;
        FI_ORDER_ATOMIC_WAW = 1 << 39;
        FI_ORDER_DATA = 1 << 16;
    }
}
