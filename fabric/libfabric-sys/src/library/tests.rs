//! Libraries that a C compiler makes of a few lines, and libraries that are not there.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

/// The functions that a libfabric has, all but `fi_version`.
const FUNCTIONS: &str = "
int fi_getinfo(unsigned version, void *node, void *service, unsigned long flags, void *hints, void **info)
{ return -61; }
void fi_freeinfo(void *info) {}
void *fi_dupinfo(void *info) { return 0; }
int fi_fabric(void *attributes, void **fabric, void *context) { return -38; }
const char *fi_strerror(int number) { return number == 61 ? \"made up\" : 0; }
";

/// The function `fi_open`, which came last of all.
const OPEN: &str = "int fi_open(void) { return -38; }\n";

fn version(major: u16, minor: u16) -> String {
    let version = Level::new(major, minor).version();
    format!("unsigned fi_version(void) {{ return {version}; }}\n")
}

/// Makes a library of C text; `None` where there is no compiler.
pub(super) fn make(test: &str, folder: &Path, name: &str, text: &str) -> Option<PathBuf> {
    if let Some(reason) = doorbell_testing::skip::lacking("gcc", "gcc") {
        doorbell_testing::skipped(test, &reason);
        return None;
    }
    let (source, library) = (folder.join("library.c"), folder.join(name));
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new("gcc");
    command
        .args(["-shared", "-fPIC", "-w"])
        .arg(format!("-Wl,-soname,{name}"));
    let output = command.arg("-o").arg(&library).arg(&source).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(library)
}

#[test]
fn a_library_with_all_functions_is_used_and_asked_for_no_newer_level_than_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let test = "a_library_with_all_functions_is_used_and_asked_for_no_newer_level_than_is_known";
    let text = version(9, 1) + FUNCTIONS + OPEN;
    let Some(path) = make(test, folder.path(), "libmadeup-new.so", &text) else {
        return;
    };
    let library = Library::open_at(&path).unwrap();
    assert_eq!(
        (library.release(), library.level()),
        (Level::new(9, 1), Level::NEWEST)
    );
    let error = library.getinfo(library.level(), None, None, 0, None).unwrap_err();
    assert_eq!(error.to_string(), "fi_getinfo failed: made up (61)");
    assert_eq!(library.strerror(5), "error 5");
    let error = library.hints().unwrap_err();
    assert_eq!((error.call, error.number), ("fi_dupinfo", crate::FI_ENOMEM));
}

#[test]
fn an_old_library_is_refused_with_its_release_and_the_oldest_that_can_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let test = "an_old_library_is_refused_with_its_release_and_the_oldest_that_can_be_used";
    let text = version(1, 16) + FUNCTIONS + OPEN;
    let Some(path) = make(test, folder.path(), "libmadeup-old.so", &text) else {
        return;
    };
    assert_eq!(
        Library::open_at(&path).unwrap_err().to_string(),
        format!(
            "{} is libfabric 1.16, and 1.17 is the oldest release that can be used",
            path.display()
        )
    );
}

#[test]
fn a_function_that_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let test = "a_function_that_is_missing_is_named";
    let cases = [
        ("libmadeup-open.so", version(1, 17) + FUNCTIONS, "fi_open"),
        ("libmadeup-version.so", FUNCTIONS.to_owned() + OPEN, "fi_version"),
        ("libmadeup-info.so", version(1, 17) + OPEN, "fi_getinfo"),
    ];
    for (name, text, function) in cases {
        let Some(path) = make(test, folder.path(), name, &text) else {
            return;
        };
        let expected = format!(
            "{} has no function {function}, so it is no libfabric of release 1.17 or later",
            path.display()
        );
        assert_eq!(Library::open_at(&path).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_file_that_is_no_library_is_refused_in_the_loader_s_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libfabric.so.1");
    let missing = Library::open_at(&path).unwrap_err().to_string();
    std::fs::write(&path, "no library").unwrap();
    let text = Library::open_at(&path).unwrap_err().to_string();
    for (text, words) in [(missing, "No such file"), (text, "file too short")] {
        let start = format!("the library {} cannot be loaded: ", path.display());
        assert!(text.starts_with(&start) && text.contains(words), "{text}");
    }
}

#[test]
fn where_none_is_installed_the_sentence_says_how_to_get_one() {
    let error = Library::search(c"libmadeup-nowhere.so.1", None).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("no libfabric is installed (libmadeup-nowhere.so.1: "),
        "{text}"
    );
    assert!(text.contains("apt-get install libfabric1"), "{text}");
}

#[test]
fn the_path_is_taken_where_none_is_installed_and_what_is_loaded_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let test = "the_path_is_taken_where_none_is_installed_and_what_is_loaded_comes_first";
    let name = c"libmadeup-loaded.so.1";
    let text = version(1, 18) + FUNCTIONS + OPEN;
    let Some(path) = make(test, folder.path(), "libmadeup-loaded.so.1", &text) else {
        return;
    };
    assert!(Library::search(name, None).is_err());
    assert_eq!(
        Library::search(name, Some(&path)).unwrap().release(),
        Level::new(1, 18)
    );
    // It is loaded now, in a folder where the loader does not look.
    assert_eq!(Library::search(name, None).unwrap().release(), Level::new(1, 18));
}
