//! The types of `pmix_common.h`, as far as they are used. Their sizes are those of versions 3 to 5 of the
//! standard, and are compared with the header where one is installed (`tests`).
//!
//! Of returned values only the first two words of the data are read, and only one `Info` is passed at a time:
//! so version 2 works as well, whose values are one word shorter.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

/// The C type `pmix_status_t`.
pub(super) type Status = c_int;
/// The constant `PMIX_SUCCESS`.
pub(super) const SUCCESS: Status = 0;
/// `PMIX_ERR_UNREACH`: the server cannot be reached.
pub(super) const UNREACHABLE: Status = -25;
/// The constant `PMIX_ERR_NOT_FOUND`.
pub(super) const NOT_FOUND: Status = -46;
/// `PMIX_RANK_WILDCARD`: information about the whole job.
pub(super) const WILDCARD: u32 = u32::MAX - 1;
/// `PMIX_GLOBAL`: for the ranks of all hosts.
pub(super) const GLOBAL: u8 = 3;

/// The constant `PMIX_BOOL`.
pub(super) const BOOL: u16 = 1;
/// The constant `PMIX_STRING`.
pub(super) const STRING: u16 = 3;
/// The constant `PMIX_UINT16`.
pub(super) const UINT16: u16 = 13;
/// The constant `PMIX_UINT32`.
pub(super) const UINT32: u16 = 14;
/// The constant `PMIX_BYTE_OBJECT`.
pub(super) const BYTE_OBJECT: u16 = 27;

/// The constant `PMIX_JOB_SIZE`.
pub(super) const JOB_SIZE: &str = "pmix.job.size";
/// The constant `PMIX_LOCAL_RANK`.
pub(super) const LOCAL_RANK: &str = "pmix.lrank";
/// The constant `PMIX_LOCAL_SIZE`.
pub(super) const LOCAL_SIZE: &str = "pmix.local.size";
/// `PMIX_COLLECT_DATA`: the fence distributes all values to all servers.
pub(super) const COLLECT_DATA: &[u8] = b"pmix.collect";

/// `PMIX_HOST`: the hosts on which processes are to be started.
pub(super) const HOST: &[u8] = b"pmix.host";

/// Maximum characters of a namespace, with its terminator.
pub(super) const NAMESPACE: usize = 256;
/// Maximum characters of a key, with its terminator.
pub(super) const KEY: usize = 512;

/// The C type `pmix_proc_t`.
#[repr(C)]
pub(super) struct Proc {
    pub(super) namespace: [c_char; NAMESPACE],
    pub(super) rank: u32,
}

/// The C type `pmix_byte_object_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Bytes {
    pub(super) bytes: *mut c_char,
    pub(super) size: usize,
}

/// The union in `pmix_value_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Data {
    pub(super) flag: bool,
    pub(super) uint16: u16,
    pub(super) uint32: u32,
    pub(super) bytes: Bytes,
    pub(super) string: *mut c_char,
    pub(super) words: [u64; 3],
}

/// The C type `pmix_value_t`.
#[repr(C)]
pub(super) struct Value {
    // The first field, on which `client::read` relies.
    pub(super) kind: u16,
    pub(super) data: Data,
}

/// The C type `pmix_info_t`.
#[repr(C)]
pub(super) struct Info {
    pub(super) key: [c_char; KEY],
    pub(super) flags: u32,
    pub(super) value: Value,
}

/// The C type `pmix_app_t`.
#[repr(C)]
pub(super) struct App {
    pub(super) command: *mut c_char,
    pub(super) argv: *mut *mut c_char,
    pub(super) env: *mut *mut c_char,
    pub(super) folder: *mut c_char,
    pub(super) processes: c_int,
    pub(super) info: *mut Info,
    pub(super) infos: usize,
}

/// Sizes and offsets, in the order in which a test prints them from C.
#[cfg_attr(not(test), allow(dead_code))]
pub(super) const LAYOUT: [usize; 14] = [
    size_of::<Proc>(),
    offset_of!(Proc, rank),
    size_of::<Value>(),
    offset_of!(Value, data),
    size_of::<Info>(),
    offset_of!(Info, flags),
    offset_of!(Info, value),
    size_of::<Bytes>(),
    offset_of!(Bytes, size),
    size_of::<App>(),
    offset_of!(App, env),
    offset_of!(App, processes),
    offset_of!(App, info),
    offset_of!(App, infos),
];
#[cfg(target_pointer_width = "64")]
const _: () = {
    let wanted = [260, 256, 32, 8, 552, 512, 520, 16, 8, 56, 16, 32, 40, 48];
    let mut at = 0;
    while at < LAYOUT.len() {
        assert!(LAYOUT[at] == wanted[at]);
        at += 1;
    }
};

/// The function `PMIx_Init`.
pub(super) type Init = unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> Status;
/// The function `PMIx_Finalize`.
pub(super) type Finalize = unsafe extern "C" fn(*const Info, usize) -> Status;
/// The function `PMIx_Abort`.
pub(super) type Abort = unsafe extern "C" fn(c_int, *const c_char, *mut Proc, usize) -> Status;
/// The function `PMIx_Put`.
pub(super) type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> Status;
/// The function `PMIx_Commit`.
pub(super) type Commit = unsafe extern "C" fn() -> Status;
/// The function `PMIx_Fence`.
pub(super) type Fence = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> Status;
/// The function `PMIx_Get`.
pub(super) type Get =
    unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> Status;
/// The function `PMIx_Spawn`.
pub(super) type Spawn = unsafe extern "C" fn(*const Info, usize, *const App, usize, *mut c_char) -> Status;
/// The function `PMIx_Error_string`.
pub(super) type ErrorString = unsafe extern "C" fn(Status) -> *const c_char;
/// The result of `dlsym`.
pub(super) type Symbol = *mut c_void;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use doorbell_testing::skipped;

    use super::*;

    /// Returns the include folder, from pkg-config or Debian's default.
    fn headers() -> Option<String> {
        let asked = Command::new("pkg-config").args(["--cflags", "pmix"]).output();
        let told = asked.ok().filter(|output| output.status.success());
        let told = told.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let debian = "/usr/lib/x86_64-linux-gnu/pmix2/include";
        let usual = Path::new(debian)
            .join("pmix.h")
            .is_file()
            .then(|| format!("-I{debian}"));
        told.or(usual)
    }

    const TEST: &str = "the_header_gives_the_same_layout";

    #[test]
    fn the_header_gives_the_same_layout() {
        let Some(flags) = headers() else {
            return skipped(TEST, "package libpmix-dev: pmix.h is not here");
        };
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
        let text = "#include <pmix.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n\
            size_t a[] = {sizeof(pmix_proc_t), offsetof(pmix_proc_t, rank), sizeof(pmix_value_t), \
            offsetof(pmix_value_t, data), sizeof(pmix_info_t), offsetof(pmix_info_t, flags), \
            offsetof(pmix_info_t, value), sizeof(pmix_byte_object_t), offsetof(pmix_byte_object_t, size), \
            sizeof(pmix_app_t), offsetof(pmix_app_t, env), offsetof(pmix_app_t, maxprocs), offsetof(pmix_app_t, info), \
            offsetof(pmix_app_t, ninfo), PMIX_STRING, \
            PMIX_BOOL, PMIX_UINT16, PMIX_UINT32, PMIX_BYTE_OBJECT, PMIX_GLOBAL, sizeof(pmix_status_t), \
            sizeof(pmix_scope_t), (size_t)-PMIX_ERR_NOT_FOUND, (size_t)-PMIX_ERR_UNREACH};\n\
            for (size_t i = 0; i < sizeof a / sizeof *a; i++) printf(\"%zu \", a[i]);\n\
            printf(\"%u %s %s %s %s %s\\n\", (unsigned)(PMIX_RANK_WILDCARD), PMIX_JOB_SIZE, PMIX_LOCAL_RANK, \
            PMIX_LOCAL_SIZE, PMIX_COLLECT_DATA, PMIX_HOST);\nreturn 0; }\n";
        std::fs::write(&source, text).unwrap();
        let built = Command::new("cc")
            .args(flags.split_whitespace())
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .output();
        let built = match built {
            Ok(built) => built,
            Err(error) => return skipped(TEST, &format!("cc: {error}")),
        };
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let told = Command::new(&program).output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        let kinds = [STRING, BOOL, UINT16, UINT32, BYTE_OBJECT].map(usize::from);
        let rest = [usize::from(GLOBAL), size_of::<Status>(), size_of::<u8>()];
        let codes = [NOT_FOUND, UNREACHABLE].map(|code| code.unsigned_abs() as usize);
        let numbers = LAYOUT.iter().chain(&kinds).chain(&rest).chain(&codes);
        let mut expected: Vec<String> = numbers.map(usize::to_string).collect();
        expected.push(WILDCARD.to_string());
        let [collect, host] = [COLLECT_DATA, HOST].map(String::from_utf8_lossy);
        expected.extend([JOB_SIZE, LOCAL_RANK, LOCAL_SIZE, &collect, &host].map(str::to_owned));
        assert_eq!(told.split_whitespace().collect::<Vec<_>>(), expected);
    }
}
