//! The installed libfabric: that it is found, and what it lists.

use libfabric_sys::{
    FI_EINVAL, FI_ENODATA, FI_EP_RDM, FI_ETRUNC, InfoList, Level, Library, LibraryError, fi_domain_attr,
    fi_info, field_at,
};

/// The library, or the reason for a skip where none is installed.
pub(crate) fn library() -> Result<Library, String> {
    Library::open().map_err(|error| match error {
        LibraryError::None { reason } => format!("package libfabric-bin: {reason}"),
        other => panic!("{other}"),
    })
}

/// The provider names of a list, each once.
fn providers(list: &InfoList) -> Vec<String> {
    let mut names: Vec<String> = list.names().into_iter().map(|names| names.provider).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn it_lists_its_providers_with_their_names() {
    let library = match library() {
        Ok(library) => library,
        Err(reason) => return doorbell_testing::skipped("it_lists_its_providers_with_their_names", &reason),
    };
    assert!(library.release().has(Level::OLDEST) && Level::NEWEST.has(library.level()));
    let list = library.getinfo(library.level(), None, None, 0, None).unwrap();
    let names = providers(&list);
    println!("libfabric {}: {}", library.release(), names.join(", "));
    for known in ["shm", "tcp", "udp"] {
        assert!(
            names.iter().any(|name| name.split(';').next() == Some(known)),
            "{names:?}"
        );
    }
    // A second look finds the library that is loaded now.
    assert_eq!(Library::open().unwrap().release(), library.release());
}

#[test]
fn hints_choose_and_nonsense_is_refused_in_the_library_s_words() {
    let name = "hints_choose_and_nonsense_is_refused_in_the_library_s_words";
    let library = match library() {
        Ok(library) => library,
        Err(reason) => return doorbell_testing::skipped(name, &reason),
    };
    let mut hints = library.hints().unwrap();
    let entry = hints.as_mut_ptr();
    // SAFETY: the library gave the hints all their attributes.
    let endpoint = unsafe { (*entry).ep_attr };
    // SAFETY: as above.
    unsafe { (*endpoint).r#type = FI_EP_RDM };
    // SAFETY: as above.
    unsafe { (*entry).mode = u64::MAX };
    let list = library
        .getinfo(library.level(), None, None, 0, Some(&hints))
        .unwrap();
    let kind = |entry: *mut fi_info| {
        // SAFETY: an entry of a list that lives.
        let endpoint = unsafe { (*entry).ep_attr };
        // SAFETY: as above.
        unsafe { (*endpoint).r#type }
    };
    assert!(list.iter().count() > 1 && list.iter().all(|entry| kind(entry) == FI_EP_RDM));
    // SAFETY: as above.
    unsafe { (*entry).caps = 1 << 62 };
    let error = library
        .getinfo(library.level(), None, None, 0, Some(&hints))
        .unwrap_err();
    assert_eq!((error.call, error.number), ("fi_getinfo", FI_ENODATA));
    assert!(error.to_string().starts_with("fi_getinfo failed: "), "{error}");
    assert_ne!(library.strerror(FI_ETRUNC), library.strerror(-FI_EINVAL));
}

#[test]
fn a_copy_of_an_entry_outlives_its_list_and_late_fields_are_read_by_the_library_s_release() {
    let name = "a_copy_of_an_entry_outlives_its_list_and_late_fields_are_read_by_the_library_s_release";
    let library = match library() {
        Ok(library) => library,
        Err(reason) => return doorbell_testing::skipped(name, &reason),
    };
    let list = library.getinfo(library.level(), None, None, 0, None).unwrap();
    let first = list.iter().next().unwrap();
    // SAFETY: an entry of a list of this library that lives.
    let copy = unsafe { list.copy_of(first) }.unwrap();
    let names = list.names().swap_remove(0);
    drop(list);
    assert_eq!(copy.names(), [names]);
    // SAFETY: the copy has all attributes of the entry.
    let domain = unsafe { (*copy.as_ptr()).domain_attr };
    // SAFETY: the attributes have the layout of the library's release.
    let count = unsafe { field_at!(domain, fi_domain_attr, max_ep_auth_key, library.release()) };
    assert_eq!(count.is_some(), library.release().has(Level::new(1, 20)));
}
