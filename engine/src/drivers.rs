//! With what settings a job opens its rails: for programs that look at one driver alone, as `doorbell doctor` does, and have
//! to see the rail that a job would have.
//!
//! ```
//! let config = doorbell::Config::default();
//! assert_eq!(doorbell::drivers::udp_config(&config), doorbell_udp::UdpConfig::default());
//! ```

pub use crate::rails::{shm_config, udp_config, usnic_config, xdp_config};
