//! Clients of libfabric for guests, with our provider: Debian's own programs are among the guests' packages,
//! and a checked program is compiled for Debian's Open MPI with the compiler of this machine.
//!
//! ```text
//!   cargo ──► libdoorbell_fi.so ─────────────────────────────► /lab/bin/libdoorbell-fi.so
//!   mpi.c + headers of libopenmpi-dev + the guest's libmpi ──► /lab/bin/mpi
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::images::{Image, Images, Set};
use super::programs::Programs;
use super::stop::Stop;
use crate::provider;
use crate::workspace::Workspace;

/// The checked program, in the tree.
const SOURCE: &str = "am/portals/abi/clients/mpi.c";
/// Where Debian has Open MPI's headers, and libraries.
const HEADERS: &str = "usr/lib/x86_64-linux-gnu/openmpi/include";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// What compiling the program may take.
const COMPILING: Duration = Duration::from_secs(60);

/// Returns the provider and the program, each with its name in the guest. The provider is the one beside
/// `named`, the program that was named to be tested, if it is there; else it is built as the tests' is.
pub(super) fn of(
    workspace: &Workspace,
    named: Option<&Path>,
    images: &Images<'_>,
    programs: &Programs,
    folder: &Path,
) -> Result<Vec<(&'static str, PathBuf)>, Stop> {
    let beside = named.map(|named| named.with_file_name(provider::BUILT));
    let library = match beside.filter(|beside| beside.is_file()) {
        Some(beside) => beside,
        None => provider::build(workspace, "dev")?,
    };
    let headers = images.get(Image::MpiHeaders)?.join(HEADERS);
    let libraries = images.get(Image::Guest(Set::Rdma))?.join(LIBRARIES);
    let mpi = folder.join("mpi");
    let mut command = compiler(&workspace.root.join(SOURCE), &headers, &libraries, &mpi);
    programs.must("mpi", "compiling the program of MPI", &mut command, COMPILING)?;
    Ok(vec![(provider::INSTALLED, library), ("mpi", mpi)])
}

/// Returns the command that compiles the program: as Debian's `mpicc` has it, without what only Debian's own
/// linker needs to find.
fn compiler(source: &Path, headers: &Path, libraries: &Path, program: &Path) -> Command {
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O1", "-I"]).arg(headers);
    command.arg(source).arg(libraries.join("libmpi.so.40"));
    // What the library needs is in the guest.
    command.args(["-Wl,--allow-shlib-undefined", "-lpthread", "-o"]);
    command.arg(program);
    command
}
