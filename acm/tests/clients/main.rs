//! The service as its clients see it: ours, strangers, and rdma-core's own, against a back-end that is a table.

mod acme;
mod common;
mod hostile;
mod liar;
mod librdmacm;
mod many;
mod original;
mod served;
