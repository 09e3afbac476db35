//! Lists what the installed libfabric offers: `cargo run -p libfabric-sys --example providers [PROVIDER]`.

use std::process::ExitCode;

use libfabric_sys::{CallError, FI_EP_DGRAM, FI_EP_MSG, FI_EP_RDM, Library, fi_info};

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1);
    let library = match Library::open() {
        Ok(library) => library,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("libfabric {}", library.release());
    match list(&library, wanted.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the entries of one provider, or of all.
fn list(library: &Library, wanted: Option<&str>) -> Result<(), CallError> {
    let list = library.getinfo(library.level(), None, None, 0, None)?;
    for (entry, names) in list.iter().zip(list.names()) {
        if wanted.is_none_or(|wanted| names.provider.split(';').any(|part| part == wanted)) {
            println!(
                "{:16} {:24} {:16} {}",
                names.provider,
                names.fabric,
                names.domain,
                kind(entry)
            );
        }
    }
    Ok(())
}

/// The kind of endpoint of an entry.
fn kind(entry: *mut fi_info) -> &'static str {
    // SAFETY: an entry of a list that lives.
    let endpoint = unsafe { (*entry).ep_attr };
    if endpoint.is_null() {
        return "unknown";
    }
    // SAFETY: an attribute of the entry.
    match unsafe { (*endpoint).r#type } {
        FI_EP_MSG => "connected",
        FI_EP_DGRAM => "datagrams",
        FI_EP_RDM => "reliable datagrams",
        _ => "unknown",
    }
}
