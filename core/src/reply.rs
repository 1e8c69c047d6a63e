//! Replies as typed values. Replies to all kinds of requests travel as one enum. Who sent a request knows the type of its
//! reply, and takes it out of the enum here.

use std::fmt::Debug;

/// Returns a reply as the type that answers the request.
///
/// # Panics
/// If it answers another kind of request.
#[track_caller]
pub fn reply_of<R, E>(reply: E) -> R
where
    R: TryFrom<E, Error = E>,
    E: Debug,
{
    match R::try_from(reply) {
        Ok(reply) => reply,
        Err(other) => panic!("a {} is expected, not {other:?}", std::any::type_name::<R>()),
    }
}

/// Defines an enum of replies. The content of each variant is a type of its own, for [`reply_of`].
macro_rules! reply_types {
    ($(#[$docs:meta])* pub enum $all:ident {
        $($(#[$doc:meta])* $variant:ident $(($reply:ty))?,)*
    }) => {
        $(#[$docs])*
        #[derive(Clone, Debug)]
        pub enum $all {
            $($(#[$doc])* $variant $(($reply))?,)*
        }
        $($(impl TryFrom<$all> for $reply {
            type Error = $all;

            fn try_from(reply: $all) -> Result<Self, $all> {
                if let $all::$variant(reply) = reply { Ok(reply) } else { Err(reply) }
            }
        })?)*
    };
}
pub(crate) use reply_types;
