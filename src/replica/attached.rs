//! What other parts of the crate keep for a replica, of which this one knows nothing.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// One thing of each type.
#[derive(Default)]
pub(super) struct Attached(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Attached {
    /// The one of this type, which is made if there is none.
    pub(super) fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let any = all
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Arc::new(T::default()));
        match Arc::clone(any).downcast() {
            Ok(found) => found,
            Err(_) => unreachable!("it is kept by its type"),
        }
    }

    /// Lets go of all of them.
    pub(super) fn clear(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = std::mem::take(&mut *all);
        // What is dropped may be the last to hold on to this.
        drop(all);
        drop(gone);
    }
}
