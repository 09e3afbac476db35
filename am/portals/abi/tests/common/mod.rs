//! C programs against our header and library.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Reports that the calling test does not run.
pub(crate) fn skipped(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    doorbell_testing::skipped(test, reason);
}

/// Where a program is on the path.
pub(crate) fn is_on_path(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .any(|folder| Path::new(folder).join(program).is_file())
}

/// The folder that cargo has put the library into: that of this test.
pub(crate) fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(
        folder.join("libportals.so").is_file(),
        "no libportals.so in {}",
        folder.display()
    );
    folder
}

/// A program of `tests/c`, compiled; `None` where there is no compiler.
pub(crate) fn compiled(name: &str) -> Option<PathBuf> {
    if !is_on_path("gcc") {
        skipped("package gcc: gcc not found");
        return None;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Tests that run beside this one compile the same program and run it: what runs is never written to.
    let new = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR"))
        .unwrap()
        .into_temp_path();
    let library = library();
    let built = Command::new("gcc")
        .args([
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-function",
            "-pthread",
            "-I",
        ])
        .arg(here.join("include"))
        .arg(here.join("tests/c").join(format!("{name}.c")))
        .arg("-o")
        .arg(&new)
        .arg("-L")
        .arg(&library)
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-lportals")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{name}.c does not compile:\n{said}");
    new.persist(&to).unwrap();
    Some(to)
}
