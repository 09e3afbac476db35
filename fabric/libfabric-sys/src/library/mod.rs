//! libfabric itself, loaded when the process needs it.
//!
//! Nothing is linked: a program with this crate starts without libfabric. The functions are looked up by name
//! without a version, which gives the newest version of each that the library has; so structures are those of
//! the library's own release, and a field is read only where its release has it
//! ([`field_at`](crate::field_at)).
//!
//! Sources: the list of symbols `libfabric.map.in` of the library's source tree; fi_getinfo(3), fi_fabric(3),
//! fi_version(3), fi_errno(3).

mod error;
mod hints;
mod info;
mod loader;
mod provider;
mod services;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;

use self::loader::Handle;
use crate::abi::fabric::{fid, fid_fabric};
use crate::abi::info::{fi_fabric_attr, fi_info};
use crate::level::Level;

pub use self::error::{CallError, LibraryError};
pub use self::hints::Hint;
pub use self::info::{InfoIter, InfoList, Names};
pub use self::provider::ProviderFile;
pub use self::services::Services;

/// The name of the library, for all releases since 1.0.
pub const LIBRARY: &CStr = c"libfabric.so.1";

/// The signatures of the functions that the library exports.
type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type Fabric = unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type Version = unsafe extern "C" fn() -> u32;
type StrError = unsafe extern "C" fn(c_int) -> *const c_char;
type Open =
    unsafe extern "C" fn(u32, *const c_char, *mut c_void, usize, u64, *mut *mut fid, *mut c_void) -> c_int;

/// The loaded library. It is never unloaded, so that copies of this may live as long as the process.
#[derive(Clone, Copy)]
pub struct Library {
    release: Level,
    getinfo: GetInfo,
    freeinfo: FreeInfo,
    dupinfo: DupInfo,
    fabric: Fabric,
    strerror: StrError,
    open: Open,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library")
            .field("release", &self.release)
            .finish_non_exhaustive()
    }
}

/// Looks a function up and casts its address to its type.
macro_rules! function {
    ($handle:expr, $library:expr, $name:literal as $type:ty) => {{
        let address = $handle.symbol($name).ok_or_else(|| LibraryError::Function {
            library: $library.to_owned(),
            function: $name.to_str().unwrap_or_default(),
        })?;
        // SAFETY: the loader found the function of this name, whose signature in the headers is the one of
        // the type; the library is never unloaded.
        unsafe { std::mem::transmute::<*mut c_void, $type>(address) }
    }};
}

impl Library {
    /// Returns the process's libfabric: the one that is loaded already, else the one that is installed.
    ///
    /// # Errors
    /// If there is none, it lacks a function, or it is older than [`Level::OLDEST`].
    pub fn open() -> Result<Self, LibraryError> {
        Self::open_or(None)
    }

    /// Returns the process's libfabric as [`open`](Self::open) does, and where none is loaded or installed,
    /// the one at this path.
    ///
    /// # Errors
    /// As those of `open`; and if the file cannot be loaded.
    pub fn open_or(path: Option<&Path>) -> Result<Self, LibraryError> {
        Self::search(LIBRARY, path)
    }

    /// Loads the library at this path, whatever else is loaded or installed.
    ///
    /// # Errors
    /// If it cannot be loaded, lacks a function, or is too old.
    pub fn open_at(path: &Path) -> Result<Self, LibraryError> {
        let handle = loader::by_path(path).map_err(|reason| LibraryError::File {
            path: path.to_owned(),
            reason,
        })?;
        Self::of(handle, &path.display().to_string())
    }

    fn search(name: &CStr, path: Option<&Path>) -> Result<Self, LibraryError> {
        let found = loader::loaded(name).map_or_else(|| loader::by_name(name), Ok);
        match (found, path) {
            (Ok(handle), _) => Self::of(handle, &name.to_string_lossy()),
            (Err(_), Some(path)) => Self::open_at(path),
            (Err(reason), None) => Err(LibraryError::None { reason }),
        }
    }

    fn of(handle: Handle, library: &str) -> Result<Self, LibraryError> {
        let version = function!(handle, library, c"fi_version" as Version);
        // SAFETY: the function has no arguments and no preconditions.
        let release = Level::from_version(unsafe { version() });
        if !release.has(Level::OLDEST) {
            return Err(LibraryError::TooOld {
                library: library.to_owned(),
                found: release,
            });
        }
        Ok(Self {
            release,
            getinfo: function!(handle, library, c"fi_getinfo" as GetInfo),
            freeinfo: function!(handle, library, c"fi_freeinfo" as FreeInfo),
            dupinfo: function!(handle, library, c"fi_dupinfo" as DupInfo),
            fabric: function!(handle, library, c"fi_fabric" as Fabric),
            strerror: function!(handle, library, c"fi_strerror" as StrError),
            open: function!(handle, library, c"fi_open" as Open),
        })
    }

    /// Returns the release of the library.
    pub fn release(&self) -> Level {
        self.release
    }

    /// Returns the API level to pass: the library's, but none that is not known here.
    pub fn level(&self) -> Level {
        self.release.min(Level::NEWEST)
    }

    /// Returns the library's words for an error number, whose sign does not matter.
    pub fn strerror(&self, number: c_int) -> String {
        // SAFETY: any number is allowed; the result is null or a constant text.
        let text = unsafe { (self.strerror)(number.saturating_abs()) };
        if text.is_null() {
            return format!("error {number}");
        }
        // SAFETY: not null, so a constant text of the library that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    }

    /// Returns the ways of communicating that match the hints, best first; all if there are no hints.
    ///
    /// `flags` are as in fi_getinfo(3): `FI_SOURCE`, `FI_NUMERICHOST`, `FI_PROV_ATTR_ONLY`, `FI_RESCAN`.
    ///
    /// # Errors
    /// With the library's error number: `FI_ENODATA` where nothing matches.
    pub fn getinfo(
        &self,
        level: Level,
        node: Option<&CStr>,
        service: Option<&CStr>,
        flags: u64,
        hints: Option<&InfoList>,
    ) -> Result<InfoList, CallError> {
        let text = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
        let hints = hints.map_or(std::ptr::null(), InfoList::as_ptr);
        let mut list = std::ptr::null_mut();
        // SAFETY: the texts end with zero bytes; the hints are a list of this library; the list is written by
        // the call.
        let result = unsafe {
            (self.getinfo)(
                level.version(),
                text(node),
                text(service),
                flags,
                hints,
                &raw mut list,
            )
        };
        self.check("fi_getinfo", result)?;
        Ok(InfoList::new(*self, list))
    }

    /// Returns empty hints: one entry, with all its attributes.
    ///
    /// # Errors
    /// `FI_ENOMEM` if the library has no memory.
    pub fn hints(&self) -> Result<InfoList, CallError> {
        self.duplicate(std::ptr::null())
    }

    /// Copies an entry, or makes an empty one of null: fi_dupinfo(3).
    fn duplicate(&self, info: *const fi_info) -> Result<InfoList, CallError> {
        // SAFETY: null, for an empty entry, or an entry of a list of this library.
        let copy = unsafe { (self.dupinfo)(info) };
        if copy.is_null() {
            self.check("fi_dupinfo", -crate::abi::errno::FI_ENOMEM)?;
        }
        Ok(InfoList::new(*self, copy))
    }

    /// Calls fi_fabric(3): opens the fabric of an entry.
    ///
    /// # Safety
    /// `attributes` belongs to an entry of a list of this library, and `fabric` may be written.
    pub unsafe fn fabric(
        &self,
        attributes: *mut fi_fabric_attr,
        fabric: *mut *mut fid_fabric,
        context: *mut c_void,
    ) -> c_int {
        // SAFETY: by the contract of this function.
        unsafe { (self.fabric)(attributes, fabric, context) }
    }

    /// Calls fi_open(3): opens an object of the library itself, such as its log.
    ///
    /// # Safety
    /// As for the C function: `attributes` has the layout and length that belong to the name, and `object`
    /// may be written.
    #[allow(clippy::too_many_arguments)] // those of C
    pub unsafe fn open_object(
        &self,
        level: Level,
        name: &CStr,
        attributes: *mut c_void,
        length: usize,
        flags: u64,
        object: *mut *mut fid,
        context: *mut c_void,
    ) -> c_int {
        // SAFETY: the name ends with a zero byte; the rest is the contract of this function.
        unsafe {
            (self.open)(
                level.version(),
                name.as_ptr(),
                attributes,
                length,
                flags,
                object,
                context,
            )
        }
    }

    /// Makes an error of a call's negative result; others are returned.
    ///
    /// # Errors
    /// If the result is negative.
    pub fn check(&self, call: &'static str, result: c_int) -> Result<c_int, CallError> {
        if result >= 0 {
            return Ok(result);
        }
        Err(CallError {
            call,
            number: result.saturating_neg(),
            text: self.strerror(result),
        })
    }
}

/// Copies a C string; that of a null pointer is empty.
fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: not null, so a text of the library that ends with a zero byte.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_string_lossy().into_owned()
}
