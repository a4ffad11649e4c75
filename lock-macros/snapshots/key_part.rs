#[automatically_derived]
impl<'a, T: Debug> facade::KeyPart for Id<'a, T>
where
    &'a T: facade::KeyPart,
{
    fn write(
        &self,
        out: &mut facade::KeyWriter,
    ) -> facade::private::core::result::Result<(), facade::Error> {
        <&'a T as facade::KeyPart>::write(&self.0, out)
    }
}
