//! A disk in memory that fails, and that loses power.
//!
//! The store of the service works on it as on a directory ([`Files`]). Every write, length, sync, new file and rename goes
//! through it, below the database. From these, [`Volume`] makes what a disk may have after a power loss. Nothing here
//! depends on time or chance, so the same calls give the same images.

mod content;
pub use content::Content;
mod flip;
pub use flip::{Flip, flip};
mod unsynced;
pub use unsynced::{Change, Event, Fate, Image, Volume};

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;
use wharf_ops::journal::Files;

/// The room that a disk has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Room {
    /// More than is ever needed.
    #[default]
    Plenty,
    /// So little that nothing should be written.
    Low,
    /// None, and the disk says that it has plenty. Another process may take what is free after one looked.
    None,
}

#[derive(Debug, Default)]
struct Inner {
    /// What the process reads.
    contents: Vec<Content>,
    volume: Volume,
    /// The files at first, and everything that was done, if it is kept.
    first: Image,
    events: Option<Vec<Event>>,
    room: Room,
    /// The number of changes and syncs until the disk fails.
    fails_in: Option<u64>,
    has_failed: bool,
    is_gone: bool,
}

/// A disk. Its clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<Inner>>);

impl Disk {
    /// Creates a disk with these files. With `keeps`, it keeps everything that is done.
    #[must_use]
    pub fn new(image: &Image, keeps: bool) -> Self {
        let contents = image.values().cloned().collect();
        let volume = Volume::new(image);
        let events = keeps.then(Vec::new);
        let first = image.clone();
        Self(Arc::new(Mutex::new(Inner { contents, volume, first, events, ..Inner::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the files that it was created with.
    #[must_use]
    pub fn first(&self) -> Image {
        self.lock().first.clone()
    }

    /// Lets the disk fail after this many changes and syncs. Everything fails from then on. A change or sync that fails may
    /// have been done.
    pub fn fail_in(&self, operations: u64) {
        self.lock().fails_in = Some(operations);
    }

    /// Lets each read, change and sync fail from now on.
    pub fn remove(&self) {
        self.lock().is_gone = true;
    }

    /// Takes back a failure that was ordered and has not happened.
    pub fn heal(&self) {
        self.lock().fails_in = None;
    }

    /// Returns whether the disk has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.lock().has_failed
    }

    /// Sets the room that the disk has.
    pub fn set_room(&self, room: Room) {
        self.lock().room = room;
    }

    /// Returns the room that the disk has.
    #[must_use]
    pub fn room(&self) -> Room {
        self.lock().room
    }

    /// Returns what the disk has after a power loss now.
    #[must_use]
    pub fn image(&self, fate: Fate) -> Image {
        self.lock().volume.image(fate)
    }

    /// Returns the number of changes that are not synced.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.lock().volume.unsynced()
    }

    /// Returns the number of events so far, if they are kept.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().events.as_ref().map_or(0, Vec::len)
    }

    /// Takes the events, if they are kept. No more are kept afterwards.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        self.lock().events.take().unwrap_or_default()
    }
}

impl Inner {
    fn note(&mut self, event: Event) {
        self.volume.apply(&event);
        if let Some(events) = &mut self.events {
            events.push(event);
        }
    }

    fn reach(&self) -> io::Result<()> {
        if self.is_gone { Err(io::Error::other("the disk was removed")) } else { Ok(()) }
    }

    /// Counts an operation. Returns an error if the disk fails in it.
    fn count(&mut self) -> io::Result<()> {
        self.reach()?;
        if self.has_failed {
            return Err(io::Error::other("the disk has failed"));
        }
        match &mut self.fails_in {
            Some(0) => {
                self.has_failed = true;
                Err(io::Error::other("the disk fails"))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Files for Disk {
    fn open(&self, name: &str, syncs: bool) -> io::Result<Box<dyn StorageBackend>> {
        let mut inner = self.lock();
        let file = match inner.volume.file(name) {
            Some(file) => file,
            None => {
                inner.count()?;
                let file = inner.contents.len();
                inner.contents.push(Content::default());
                inner.note(Event::Create(name.to_owned()));
                inner.note(Event::SyncNames);
                file
            }
        };
        Ok(Box::new(OpenFile { disk: self.clone(), file, syncs }))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        Ok(self.lock().volume.file(name).is_some())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.lock();
        inner.count()?;
        inner.note(Event::Rename(from.to_owned(), to.to_owned()));
        inner.note(Event::SyncNames);
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(if self.lock().room == Room::Low { 0 } else { u64::MAX })
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("disk").join(name)
    }
}

/// A file of a disk, as a process has it open.
#[derive(Debug)]
struct OpenFile {
    disk: Disk,
    file: usize,
    syncs: bool,
}

impl OpenFile {
    fn change(&self, change: Change) -> io::Result<()> {
        let mut inner = self.disk.lock();
        if inner.room == Room::None && !inner.has_failed {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let counted = inner.count();
        // A change that fails may have been done, but the process does not see it.
        if counted.is_ok() {
            let content = &mut inner.contents[self.file];
            match &change {
                Change::Write(offset, data) => content.write(*offset, data),
                Change::SetLen(len) => content.set_len(*len),
            }
        }
        if counted.is_ok() || inner.fails_in.take().is_some() {
            inner.note(Event::Change(self.file, change));
        }
        counted
    }
}

impl StorageBackend for OpenFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().contents[self.file].len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let inner = self.disk.lock();
        inner.reach()?;
        let content = &inner.contents[self.file];
        if offset + out.len() as u64 > content.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        content.read(offset, out);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::SetLen(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = self.disk.lock();
        inner.count()?;
        if self.syncs {
            inner.note(Event::Sync(self.file));
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Change::Write(offset, data.into()))
    }
}
