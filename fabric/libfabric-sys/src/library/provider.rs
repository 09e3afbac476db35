//! A provider's file and what its entry returns, without libfabric.

use std::ffi::{CStr, c_void};
use std::path::Path;

use super::{LibraryError, loader, text};
use crate::abi::provider::fi_provider;
use crate::level::Level;

/// The function that libfabric looks up in a provider's file.
const ENTRY: &CStr = c"fi_prov_ini";

/// What a provider's file reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderFile {
    /// The provider's name, as in `FI_PROVIDER`.
    pub name: String,
    /// The provider's own version, which libfabric compares where two files have the same name.
    pub version: Level,
    /// The API level: libfabric skips the provider where a caller wants a newer one.
    pub level: Level,
}

impl ProviderFile {
    /// Loads a provider's file and calls its entry, as libfabric does.
    ///
    /// The file stays loaded until the process ends. Code of the file runs, which may do anything: a program
    /// that does not trust it calls this in a child process.
    ///
    /// # Errors
    /// If the loader refuses the file, in its words, if the file has no entry, or if the entry returns
    /// nothing.
    pub fn open(path: &Path) -> Result<Self, LibraryError> {
        let refused = |reason: String| LibraryError::File {
            path: path.to_owned(),
            reason,
        };
        let handle = loader::by_path(path).map_err(refused)?;
        let address = handle
            .symbol(ENTRY)
            .ok_or_else(|| refused("it has no function fi_prov_ini, so it is no provider".to_owned()))?;
        // SAFETY: the loader found the function of this name, whose signature in fi_prov.h is this one; the
        // file is never unloaded.
        let entry = unsafe { std::mem::transmute::<*mut c_void, Entry>(address) };
        // SAFETY: it takes no arguments; fi_prov.h has it called once, which is what happens here.
        let provider = unsafe { entry() };
        if provider.is_null() {
            return Err(refused("its fi_prov_ini returns no provider".to_owned()));
        }
        // SAFETY: not null, so a provider, which lives as long as its file is loaded.
        let provider = unsafe { provider.read() };
        Ok(Self {
            name: text(provider.name),
            version: Level::from_version(provider.version),
            level: Level::from_version(provider.fi_version),
        })
    }
}

/// The signature of the entry.
type Entry = unsafe extern "C" fn() -> *mut fi_provider;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::tests::make;

    const TEST: &str = "a_provider_s_file_reports_its_name_and_levels_and_what_is_none_is_refused";

    #[test]
    fn a_provider_s_file_reports_its_name_and_levels_and_what_is_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let text = "struct { unsigned version, level; void *context[4]; const char *name; void *calls[3]; } it = \
                    { 3 << 16 | 1, 2 << 16 | 6, {0}, \"made-up\", {0} };\nvoid *fi_prov_ini(void) { return &it; }\n";
        let Some(path) = make(TEST, folder.path(), "libmadeup-fi.so", text) else {
            return;
        };
        let wanted = ProviderFile {
            name: "made-up".to_owned(),
            version: Level::new(3, 1),
            level: Level::new(2, 6),
        };
        assert_eq!(ProviderFile::open(&path), Ok(wanted));
        let cases = [
            ("void *fi_prov_ini(void) { return 0; }\n", "returns no provider"),
            ("int something;\n", "no function fi_prov_ini"),
        ];
        for (number, (text, words)) in cases.into_iter().enumerate() {
            let name = format!("libmadeup{number}-fi.so");
            let Some(path) = make(TEST, folder.path(), &name, text) else {
                return;
            };
            let error = ProviderFile::open(&path).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
