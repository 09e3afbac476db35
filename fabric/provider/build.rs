//! Links the library so that it is never unmapped: threads, handlers and static data of it outlive a client's
//! `dlclose` of libfabric.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
