//! The configuration files: options, addresses, and preloaded addresses and routes.
//!
//! ```text
//!   /etc/rdma/ibacm_opts.cfg    name value                ──►  Options       ┐
//!   /etc/rdma/ibacm_addr.cfg    address device port pkey  ──►  AddressEntry  ├─ and warnings: file:line,
//!   ibacm_hosts.data            address GID               ──►  Preload       │  problem, remedy
//!   ibacm_route.data            OpenSM's path records     ──►  Preload       ┘
//! ```
//!
//! The files are the original's, in its syntax. A line that the original ignores silently gets a [`Warning`]
//! here, with its number; the other lines count, and later ones override earlier ones. No content makes a
//! file unusable as a whole.
//!
//! | module | job |
//! |---|---|
//! | `lines` | lines and fields, warnings, limits |
//! | `values` | the values of options |
//! | `options`, `items` | the options, and the table that describes them |
//! | `addresses` | `ibacm_addr.cfg` |
//! | `hosts`, `routes`, `preload` | preloaded addresses and routes |
//! | `generate` | generates both files for a cluster of a given size |
//! | `watch` | watches files for changes |
//!
//! reference: acm, section 9.

mod addresses;
mod generate;
mod hosts;
mod items;
mod lines;
mod options;
mod preload;
mod routes;
mod values;
mod watch;

pub use addresses::{AddressEntry, Pkey, read_addresses, write_addresses};
pub use generate::{Generated, generate};
pub use hosts::{HostEntry, read_hosts};
pub use lines::{WARNINGS_MAX, Warning, Warnings, read_file};
pub use options::{Options, read_options, write_options};
pub use preload::Preload;
pub use routes::read_routes;
pub use values::{
    AddressPreload, AddressProtocol, CarrierKind, Depth, Interfaces, Logging, Loopback, Minutes, Prefix,
    RoutePreload, RouteProtocol, ServerMode, interface_name,
};
pub use watch::{FileWatch, SETTLE};

/// The default folder of the configuration files.
pub const FOLDER: &str = "/etc/rdma";
/// The name of the options file.
pub const OPTIONS_FILE: &str = "ibacm_opts.cfg";
/// The name of the addresses file.
pub const ADDRESSES_FILE: &str = "ibacm_addr.cfg";
