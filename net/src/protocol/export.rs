//! An export of the store, page by page.

use super::FRAME_BYTES_MAX;

/// Maximum bytes of one page of an export.
pub const EXPORT_PAGE_BYTES_MAX: usize = 512 * 1024;

const _: () = assert!(EXPORT_PAGE_BYTES_MAX + 1024 <= FRAME_BYTES_MAX as usize);

bodies! {
    /// Asks for a page of an export. Pages are asked for one after the other, from 0 on. The last page may be asked for
    /// again.
    #[derive(Copy)]
    pub struct ExportRequest {
        /// The number of the export, which the client chooses at random. The first page begins it. A service makes one
        /// export at a time, and ends one of which nobody asks for the next page.
        pub export: u64,
        /// The page.
        pub page: u64,
    }

    /// A page of an export. All pages together are a portable file.
    pub struct ExportReply {
        /// There are pages after this one.
        pub more: bool,
        /// The bytes of the page.
        pub bytes: Vec<u8> [EXPORT_PAGE_BYTES_MAX],
    }
}
