//! Files that are only looked at: what is written to them stays in memory.
//!
//! A database writes when it is opened, even if nobody changes it. Over this, `wharf journal check` leaves a store as it
//! is, and an import reads a store that is on no disk yet.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use redb::StorageBackend;
use wharf_core::link::lock;

use super::files::{Directory, Files};

/// The bytes that are copied at once.
const BLOCK_BYTES: usize = 4096;

/// The files of a directory, or none, and what was written to them since.
#[derive(Debug)]
pub(super) struct Overlay {
    below: Option<Directory>,
    files: Mutex<BTreeMap<String, Arc<Layer>>>,
}

impl Overlay {
    /// Looks at the files of a directory.
    pub(super) fn over(below: Directory) -> Self {
        Self { below: Some(below), files: Mutex::default() }
    }

    /// Has no files yet.
    pub(super) fn empty() -> Self {
        Self { below: None, files: Mutex::default() }
    }
}

impl Files for Overlay {
    fn open(&self, name: &str, _syncs: bool) -> io::Result<Box<dyn StorageBackend>> {
        let mut files = lock(&self.files);
        if let Some(layer) = files.get(name) {
            return Ok(Box::new(Written(Arc::clone(layer))));
        }
        let below = match &self.below {
            Some(directory) => match File::open(directory.path(name)) {
                Ok(file) => Some(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
            None => None,
        };
        let below_bytes = below.as_ref().map_or(Ok(0), |file| file.metadata().map(|data| data.len()))?;
        let content = Content { bytes: below_bytes, below_bytes, blocks: BTreeMap::new() };
        let layer = Arc::new(Layer { below, content: Mutex::new(content) });
        files.insert(name.to_owned(), Arc::clone(&layer));
        Ok(Box::new(Written(layer)))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        let is_below = self.below.as_ref().is_some_and(|directory| directory.path(name).exists());
        Ok(is_below || lock(&self.files).contains_key(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = lock(&self.files);
        let layer = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), layer);
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX / 2)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.below.as_ref().map_or_else(|| PathBuf::from(name), |directory| directory.path(name))
    }
}

/// A file, and the blocks that were written over it.
#[derive(Debug)]
struct Layer {
    below: Option<File>,
    content: Mutex<Content>,
}

#[derive(Debug)]
struct Content {
    bytes: u64,
    /// The number of bytes that still show what is below. They only get fewer.
    below_bytes: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK_BYTES]>>,
}

impl Layer {
    /// Reads the bytes from `offset` on as they are below. What is not there is zero.
    fn read_below(&self, content: &Content, offset: u64, out: &mut [u8]) -> io::Result<()> {
        out.fill(0);
        let there = content.below_bytes.saturating_sub(offset).min(out.len() as u64) as usize;
        match &self.below {
            Some(file) if there > 0 => file.read_exact_at(&mut out[..there], offset),
            _ => Ok(()),
        }
    }

    /// Calls `each` with each block that `bytes` touch from `offset` on: its number, where in it they begin, and which of
    /// them are in it.
    fn each_block(
        offset: u64,
        bytes: usize,
        mut each: impl FnMut(u64, usize, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            let at = offset + done as u64;
            let within = (at % BLOCK_BYTES as u64) as usize;
            let length = (BLOCK_BYTES - within).min(bytes - done);
            each(at / BLOCK_BYTES as u64, within, done..done + length)?;
            done += length;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Written(Arc<Layer>);

impl StorageBackend for Written {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.0.content).bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let content = lock(&self.0.content);
        if offset + out.len() as u64 > content.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Layer::each_block(offset, out.len(), |number, within, range| {
            let out = &mut out[range.clone()];
            match content.blocks.get(&number) {
                Some(block) => out.copy_from_slice(&block[within..within + range.len()]),
                None => self.0.read_below(&content, number * BLOCK_BYTES as u64 + within as u64, out)?,
            }
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let content = &mut *lock(&self.0.content);
        if len < content.bytes {
            content.below_bytes = content.below_bytes.min(len);
            let kept = len.div_ceil(BLOCK_BYTES as u64);
            content.blocks.retain(|&number, _| number < kept);
            if let Some(block) = content.blocks.get_mut(&(len / BLOCK_BYTES as u64)) {
                block[(len % BLOCK_BYTES as u64) as usize..].fill(0);
            }
        }
        content.bytes = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut content = lock(&self.0.content);
        content.bytes = content.bytes.max(offset + data.len() as u64);
        Layer::each_block(offset, data.len(), |number, within, range| {
            if !content.blocks.contains_key(&number) {
                let mut block = Box::new([0; BLOCK_BYTES]);
                self.0.read_below(&content, number * BLOCK_BYTES as u64, &mut block[..])?;
                content.blocks.insert(number, block);
            }
            let block = content.blocks.get_mut(&number).expect("just there");
            block[within..within + range.len()].copy_from_slice(&data[range]);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_core::rng::Rng;

    /// Compares with a plain vector, over random reads, writes and lengths. The file below stays as it is.
    #[test]
    fn an_overlay_reads_like_the_file_that_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut rng = Rng::new(15);
        let original: Vec<u8> = (0..20_000).map(|_| rng.below(256) as u8).collect();
        std::fs::write(directory.path().join("file"), &original).unwrap();
        let overlay = Overlay::over(Directory::lock(directory.path()).unwrap());
        let file = overlay.open("file", true).unwrap();
        let mut model = original.clone();
        for _ in 0..500 {
            let offset = rng.below(24_000) as usize;
            let length = rng.below(9_000) as usize;
            match rng.below(3) {
                0 => {
                    let data = vec![rng.below(256) as u8; length];
                    file.write(offset as u64, &data).unwrap();
                    model.resize(model.len().max(offset + length), 0);
                    model[offset..offset + length].copy_from_slice(&data);
                }
                1 => {
                    file.set_len(offset as u64).unwrap();
                    model.resize(offset, 0);
                }
                _ => {
                    let mut out = vec![0; length];
                    let read = file.read(offset as u64, &mut out);
                    match model.get(offset..offset + length) {
                        Some(bytes) => assert_eq!((read.unwrap(), &out[..]), ((), bytes)),
                        None => assert!(read.is_err()),
                    }
                }
            }
            assert_eq!(file.len().unwrap(), model.len() as u64);
        }
        // Another open of the same file sees what was written.
        let mut again = vec![0; model.len()];
        overlay.open("file", true).unwrap().read(0, &mut again).unwrap();
        assert_eq!(again, model);
        assert_eq!(std::fs::read(directory.path().join("file")).unwrap(), original);
    }
}
