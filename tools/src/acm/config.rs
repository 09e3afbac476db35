//! `doorbell acm config`: generates the service's configuration for this host.

use std::process::ExitCode;

use doorbell_acm::config::{ADDRESSES_FILE, OPTIONS_FILE, generate};
use doorbell_acm::host::{Sources, scan};
use doorbell_fabric::error::Exit;

use super::args::ConfigArgs;
use crate::error::ToolError;
use crate::{console, report_files};

/// Runs `doorbell acm config`.
pub(super) fn config(args: &ConfigArgs) -> Result<ExitCode, ToolError> {
    let found = scan(&Sources::of_system(Vec::new()));
    let found = found.map_err(|error| ToolError::AcmService(error.into()))?;
    let made = generate(&found.endpoints, args.nodes);
    let files = [
        (OPTIONS_FILE, &made.options_text),
        (ADDRESSES_FILE, &made.addresses_text),
    ];
    let Some(folder) = &args.dir else {
        for (name, text) in files {
            console::print(&format!("# {name}\n{text}\n"))?;
        }
        return Ok(Exit::Done.into());
    };
    if !folder.is_dir() {
        return Err(ToolError::Usage(format!(
            "there is no folder `{}` to write to; create it (`mkdir -p`), or give another one",
            folder.display()
        )));
    }
    for (name, _) in files {
        let file = folder.join(name);
        if !args.force && file.symlink_metadata().is_ok() {
            return Err(ToolError::Usage(format!(
                "`{}` already exists; check its content, and give --force to overwrite it",
                file.display()
            )));
        }
    }
    for (name, text) in files {
        let file = folder.join(name);
        report_files::write(&file, text, &mut std::io::stdout())?;
        console::print(&format!("wrote {}\n", file.display()))?;
    }
    Ok(Exit::Done.into())
}
