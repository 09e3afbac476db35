//! `cargo xtask ofi-layouts`: the layouts of a folder of libfabric's headers, beside those that
//! `fabric/libfabric-sys` declares.
//!
//! [`probe`] writes a small C program that prints sizes and offsets, which the compiler gcc knows.

mod probe;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use libfabric_sys::layout::compare;

use crate::error::Error;
use crate::workspace::Workspace;

pub(crate) const HELP: &str = "\
Compiles a program against the headers that prints every size, offset, number of entries and constant that \
fabric/libfabric-sys declares, and prints what differs: structure, field, ours, theirs. Exit status 1 where something does.

The tables of several releases are in fabric/libfabric-sys/layouts, and its tests compare with them. Needs gcc.

Examples:
  cargo xtask ofi-layouts --headers /usr/include
  cargo xtask ofi-layouts --headers ~/src/libfabric/include
  cargo xtask ofi-layouts --headers ~/src/libfabric --table fabric/libfabric-sys/layouts/2.6.txt";

/// The first line of a table's file.
const MADE_BY: &str = "# Made by `cargo xtask ofi-layouts --headers DIR --table FILE`.\n";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The folder with rdma/fabric.h, or the source tree that has it in its folder include
    #[arg(long, value_name = "DIR")]
    headers: PathBuf,
    /// Write the table of what was measured, too; `-` is the standard output
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
}

/// The command; true when nothing differs.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool, Error> {
    let headers = probe::Headers::find(&options.headers)?;
    let table = probe::measure(&headers, &workspace.target.join("xtask/ofi-layouts"))?;
    match options.table.as_deref() {
        Some(file) if file == Path::new("-") => print!("{table}"),
        Some(file) => {
            std::fs::write(file, format!("{MADE_BY}{table}")).map_err(Error::file("write", file))?
        }
        None => {}
    }
    let comparison = compare::with(&table);
    for difference in &comparison.differences {
        println!("{difference}");
    }
    println!(
        "libfabric {}, {}: {comparison}",
        table.release,
        headers.folder().display()
    );
    Ok(comparison.differences.is_empty())
}
