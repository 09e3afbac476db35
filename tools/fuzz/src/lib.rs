//! What the fuzzers do with their input. Each module is one target: `run` reads the bytes as a script or as
//! what a stranger sent, and asserts what must hold whatever they are; that nothing panics is only the least
//! of it.
//!
//! | module | what is attacked | what must hold |
//! |---|---|---|
//! | [`acm_client`] | clients and the service of address resolution, by each other | messages are the same in any pieces; what is understood is written as it was read |
//! | [`btl_frames`] | two BTLs whose frames carry MACs, by an attacker between them | each message arrives once, whole, and only if it was sent; in the end all do |
//! | [`btl_peer`] | a BTL, by the peer it trusts | no byte outside of what is exposed or lent is written or sent |
//! | [`pml_peer`] | the PML, by a peer | receives end with messages that match; bounds hold; no byte outside of a buffer is written |
//! | [`pml_windows`] | the windows of a PML, and its own operations, by a peer | no byte is stored that no window allows, or outside of a buffer; bounds hold |
//! | [`portals_ni`] | a Portals interface, by a peer | events are only of what was appended or started; operations end once; no byte outside is written or sent |
//! | [`oob_session`] | two encrypted sessions, by an attacker between them | what arrives is the beginning of what was sent |
//! | [`pmi`] | the clients of a launcher, by the launcher | an answer is what was written, whatever the pieces; after a fault no request is sent |
//! | [`oob_node`] | a node of the control plane, by a neighbour that has the job's key | sends end once; memory is bounded; frames and hellos are what was written, or refused |
//! | [`meeting`] | rank 0 and its ranks, by one of them | frames and tables are what was written, or refused |
//! | [`lobby`] | members of no job, by whatever passes an address or calls a desk | what is accepted is what was written; a call is for one member |
//! | [`key_file`] | the reader of key files | what is accepted is a key, and is written as it was read |
//! | [`acm_config`] | the readers of address resolution's files and frames | what is accepted is written as it was read; warnings have a bound and can be shown |
//! | [`names`] | names and addresses of rails | what is accepted survives text and JSON; refusals can be shown |
//! | [`pcapng`] | the reader of captures | it ends; what the writer wrote is read |
//! | [`ether`] | the reader of Ethernet, IP and UDP headers | what it shows lies inside of the packet; what was written is read |
//! | [`netlink`] | what is read of the kernel's messages about links, routes, neighbours | nothing is shown that is not in them |
//! | [`xdp_receive`] | the receiving half of an xdp rail, by its kernel | no chunk is lost or comes twice; no frame is shown that was not sent |
//! | [`vic`] | the model of a VIC, by its clients and the wire | rings stay inside of their bounds; no function writes what is another's |
//! | [`lane`] | both ends of a lane in shared memory, by the other one | no index is believed that cannot be |
//! | [`acm_mad`] | a resolver of addresses, by all hosts on its network | questions end once, by their bound; tables are bounded; without the key nothing is learned |
//! | [`acm_subnet`] | the requests to a subnet's administrator, by that administrator | questions end once, by their bound; a group that is joined is the requested one |
//! | [`verbs_contact`] | two contacts of rails over connections, by an attacker between them | both ends report one life; in the end there is one connection |
//! | [`verbs_address`] | the reader of what rails over queue pairs publish | what is accepted is written as it was read |
//! | [`verbs_sends`] | one end of a reliable connection, by the peer: heads, coalesced messages, slots of the ring, counters | what is accepted was granted and is read as it was written; no counter is believed that cannot be |
//! | [`hotel`] | the timers, by their owner | they do what a plain model does |
#![forbid(unsafe_code)]

pub mod acm_client;
pub mod acm_config;
pub mod acm_mad;
pub mod acm_subnet;
pub mod btl_frames;
pub mod btl_peer;
pub mod ether;
mod fed;
pub mod hotel;
pub mod key_file;
pub mod lane;
pub mod lobby;
pub mod meeting;
pub mod names;
pub mod netlink;
pub mod oob_node;
pub mod oob_session;
pub mod pcapng;
pub mod pmi;
pub mod pml_peer;
pub mod pml_windows;
pub mod portals_ni;
mod script;
pub mod verbs_address;
pub mod verbs_contact;
pub mod verbs_sends;
pub mod vic;
mod wire;
pub mod xdp_receive;
