//! The output if the attribute cannot be expanded.
//!
//! The function stays, without the lock, so that its callers still compile and an editor still
//! knows it. The error beside it stops the build.

use proc_macro2::TokenStream;
use quote::quote;

use crate::item::{Function, is_distributed_lock};

/// `item` with `error` beside it.
pub(crate) fn item(item: TokenStream, error: &syn::Error) -> TokenStream {
    let error = error.to_compile_error();
    // A second `#[distributed_lock]` would be expanded next and would add errors of its own.
    let item = match syn::parse2::<Function>(item.clone()) {
        Ok(mut function) => {
            function.attrs.retain(|attr| !is_distributed_lock(attr));
            quote!(#function)
        }
        Err(_) => item,
    };
    quote!(#item #error)
}
