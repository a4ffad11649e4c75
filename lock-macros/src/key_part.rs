//! `#[derive(KeyPart)]`: in a key, a struct with one field is written as that field.

use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use syn::spanned::Spanned as _;
use syn::visit_mut::VisitMut;
use syn::{
    Data, DeriveInput, Fields, Ident, Member, Path, Result, Token, Type, parse_quote_spanned,
};

use crate::{args, messages};

/// The implementation for `input`.
pub(crate) fn derive(input: &DeriveInput) -> Result<TokenStream> {
    let root = root(input)?;
    let (member, ty) = field(input)?;
    let name = &input.ident;
    let mut generics = input.generics.clone();
    if mentions_parameter(ty, input) {
        let bound = parse_quote_spanned!(ty.span()=> #ty: #root::KeyPart);
        generics.make_where_clause().predicates.push(bound);
    }
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    let span = Span::mixed_site();
    // At the field's type, so that a type which is not a `KeyPart` is reported there.
    let write = quote_spanned!(ty.span().resolved_at(span)=> <#ty as #root::KeyPart>::write);
    Ok(quote_spanned! {span=>
        #[automatically_derived]
        impl #impl_generics #root::KeyPart for #name #ty_generics #where_clause {
            fn write(
                &self,
                out: &mut #root::KeyWriter,
            ) -> #root::private::core::result::Result<(), #root::Error> {
                #write(&self.#member, out)
            }
        }
    })
}

/// The path of `lock_core`, which `#[key_part(crate = path)]` overrides.
fn root(input: &DeriveInput) -> Result<Path> {
    let mut root = args::default_root();
    for attr in input.attrs.iter().filter(|attr| attr.path().is_ident("key_part")) {
        attr.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(messages::unknown_helper(meta.path.span()));
            }
            meta.input.parse::<Token![=]>()?;
            root = meta.input.call(Path::parse_mod_style)?;
            Ok(())
        })?;
    }
    Ok(root)
}

/// The one field of the struct.
fn field(input: &DeriveInput) -> Result<(Member, &Type)> {
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        Data::Enum(data) => return Err(messages::not_a_struct(data.enum_token.span)),
        Data::Union(data) => return Err(messages::not_a_struct(data.union_token.span)),
    };
    let mut found = fields.members().zip(fields);
    match (found.next(), found.next()) {
        (Some((member, field)), None) => Ok((member, &field.ty)),
        _ => Err(messages::not_one_field(match fields {
            Fields::Unit => input.ident.span(),
            fields => fields.span(),
        })),
    }
}

/// Whether `ty` depends on a type parameter. For another type, a bound would be a second error.
fn mentions_parameter(ty: &Type, input: &DeriveInput) -> bool {
    struct Search<'a> {
        parameters: Vec<&'a Ident>,
        found: bool,
    }
    impl VisitMut for Search<'_> {
        fn visit_ident_mut(&mut self, ident: &mut Ident) {
            self.found |= self.parameters.contains(&&*ident);
        }
    }
    let parameters = input.generics.type_params().map(|param| &param.ident).collect();
    let mut search = Search { parameters, found: false };
    search.visit_type_mut(&mut ty.clone());
    search.found
}
