//! The macros that declare structures and constants of the library's headers together with the lists that a
//! test compares with the headers themselves.

/// A structure, as C sees it.
#[cfg(test)]
pub(crate) struct Layout {
    /// Its name in the headers.
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    /// Names of fields as in the headers, offsets and sizes.
    pub(crate) fields: &'static [(&'static str, usize, usize)],
}

/// Declares structures with the sizes and offsets that they have on x86-64, and asserts these there. On other
/// processors a mutex may have another size, and the test against the headers judges.
macro_rules! structures {
    ($(
        $(#[$meta:meta])*
        pub(crate) struct $name:ident as $c:ident = $size:literal {
            $($(#[$note:meta])* $field:ident $(as $member:literal)?: $type:ty = $offset:literal;)*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy)]
            #[repr(C)]
            pub(crate) struct $name {
                $($(#[$note])* pub(crate) $field: $type,)*
            }

            #[cfg(target_arch = "x86_64")]
            const _: () = {
                assert!(size_of::<$name>() == $size, concat!("the size of ", stringify!($c)));
                $(assert!(
                    memoffset::offset_of!($name, $field) == $offset,
                    concat!("the offset of ", stringify!($c), ".", stringify!($field)),
                );)*
            };

            impl std::fmt::Debug for $name {
                /// Shows the name alone: most fields are the library's own.
                fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    out.debug_struct(stringify!($name)).finish_non_exhaustive()
                }
            }

            impl $name {
                /// All bytes zero, as C programs begin with.
                #[allow(dead_code)] // of structures that the library makes
                pub(crate) const fn zeroed() -> Self {
                    // SAFETY: all fields are numbers, bytes, raw pointers, optional functions, or structures
                    // of these, and a mutex's bytes: zero is valid for each.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*

        /// Every structure of this module.
        #[cfg(test)]
        pub(crate) const LAYOUTS: &[Layout] = &[$(Layout {
            name: stringify!($c),
            size: size_of::<$name>(),
            fields: &[$((
                structures!(@name $field $($member)?),
                memoffset::offset_of!($name, $field),
                size_of::<$type>(),
            ),)*],
        },)*];
    };
    (@name $field:ident $member:literal) => { $member };
    (@name $field:ident) => { stringify!($field) };
}

/// Declares numbers with their names in the headers.
macro_rules! numbers {
    ($($(#[$meta:meta])* $name:ident: $type:ty as $c:ident = $value:expr;)*) => {
        $($(#[$meta])* pub(crate) const $name: $type = $value;)*

        /// Every number of this module, by its name in the headers.
        #[cfg(test)]
        pub(crate) const NUMBERS: &[(&str, i64)] = &[$((stringify!($c), $name as i64),)*];
    };
}
