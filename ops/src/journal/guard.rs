//! Panics of the database over damaged pages, as errors.
//!
//! redb verifies all pages after a crash. It trusts those of a database that was closed, so a page that has changed since
//! then can make it panic while it reads. It expects that: its locks and transactions are whole after an unwind. A guarded
//! call only runs code of the database, so no fault of ours is taken for damage.

use std::any::Any;
use std::cell::Cell;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

use redb::{Database, Key, Value};

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a panic of this thread becomes an error. A panic hook then leaves it to those who get that error.
#[must_use]
pub fn becomes_error() -> bool {
    IS_GUARDED.get()
}

/// Lets panics that become errors print nothing, because those who get the errors report them. Call it once per process.
pub fn report_other_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !becomes_error() {
            report(panic);
        }
    }));
}

/// Runs a call of the database. A panic is damage.
pub(super) fn guarded<R, E: Into<redb::Error>>(
    call: impl FnOnce() -> Result<R, E>,
) -> Result<R, redb::Error> {
    let was_guarded = IS_GUARDED.replace(true);
    let ended = catch_unwind(AssertUnwindSafe(call));
    IS_GUARDED.set(was_guarded);
    match ended {
        Ok(result) => result.map_err(Into::into),
        Err(panic) => {
            Err(redb::Error::Corrupted(format!("the database stopped at it: {}", text_of(&*panic))))
        }
    }
}

/// An open database. Its close writes, so it is guarded too. After a close that failed, the next open verifies all pages.
pub(super) struct Handle(Option<Database>);

impl Handle {
    pub(super) fn new(database: Database) -> Self {
        Self(Some(database))
    }
}

impl Deref for Handle {
    type Target = Database;

    fn deref(&self) -> &Database {
        self.0.as_ref().expect("it is there until the drop")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let database = self.0.take();
        // Nobody waits for the error of a close.
        let _ = guarded(|| -> Result<(), redb::Error> {
            drop(database);
            Ok(())
        });
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref().copied();
    literal.or_else(|| panic.downcast_ref().map(String::as_str)).unwrap_or("it gives no reason")
}

/// Gives the rows of a range to `each` until it returns false.
pub(super) fn each_row<K: Key + 'static, V: Value + 'static, E: From<redb::Error>>(
    mut rows: redb::Range<'_, K, V>,
    mut each: impl FnMut(K::SelfType<'_>, V::SelfType<'_>) -> Result<bool, E>,
) -> Result<(), E> {
    while let Some((key, value)) = guarded(|| rows.next().transpose())? {
        let key = guarded(|| Ok::<_, redb::Error>(key.value()))?;
        let value = guarded(|| Ok::<_, redb::Error>(value.value()))?;
        if !each(key, value)? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a panic of the service that is taken for damage of a file.
    #[test]
    fn only_a_guarded_panic_becomes_an_error() {
        assert!(!becomes_error());
        let fails = || -> Result<(), redb::Error> {
            assert!(becomes_error());
            let _ = guarded(|| -> Result<(), redb::Error> { panic!("inner") });
            assert!(becomes_error(), "the outer call is guarded still");
            panic!("page {}", 7)
        };
        let error = guarded(fails).unwrap_err();
        assert!(matches!(&error, redb::Error::Corrupted(why) if why.ends_with("page 7")), "{error}");
        assert!(!becomes_error());
    }
}
