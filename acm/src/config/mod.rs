//! What is written down: options, addresses, and what is known before anybody asks.
//!
//! ```text
//!   /etc/rdma/ibacm_opts.cfg    name value                ──►  Options       ┐
//!   /etc/rdma/ibacm_addr.cfg    address device port pkey  ──►  AddressEntry  ├─ and warnings: file:line, what, what it
//!   ibacm_hosts.data            address GID               ──►  Preload       │  would take
//!   ibacm_route.data            OpenSM's path records     ──►  Preload       ┘
//! ```
//!
//! The files are the original's, read as they are. Where the original says nothing of a line that it cannot use, a
//! [`Warning`] is given here, with the number of the line; the other lines count all the same, and later ones win. Nothing
//! in a file is a reason to refuse it as a whole.
//!
//! | module | job |
//! |---|---|
//! | `lines` | text to numbered lines and fields, warnings, bounds |
//! | `values` | what options are set to |
//! | `options`, `items` | the options, and the table by which they are read and written |
//! | `addresses` | `ibacm_addr.cfg` |
//! | `hosts`, `routes`, `preload` | what is known before anybody asks |
//! | `generate` | both files, made for a host in a cluster of a size |
//! | `watch` | word of changes to files |
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
    AddressPreload, AddressProtocol, Depth, Interfaces, Logging, Loopback, Minutes, Prefix, RoutePreload,
    RouteProtocol, ServerMode, interface_name,
};
pub use watch::{SETTLE, Watch};

/// The folder in which the files are looked for.
pub const FOLDER: &str = "/etc/rdma";
/// The file of options.
pub const OPTIONS_FILE: &str = "ibacm_opts.cfg";
/// The file of addresses.
pub const ADDRESSES_FILE: &str = "ibacm_addr.cfg";
