//! What Redis says of operators' scripts before any request needs them. It reads Lua 5.1, and the
//! VM in which scripts are tried reads more than that.

use super::{Redis, owners, resp};
use crate::engine::{EngineError, Scripts, driver};

impl Redis {
    /// Has each master load the scripts as calls do, and run nothing of them. Returns those that
    /// can't be loaded, each with what Redis says: its lines are those of the script.
    ///
    /// # Errors
    /// A master that does not answer.
    pub(in crate::engine) async fn try_scripts(
        &self,
        scripts: &Scripts,
    ) -> Result<Vec<(String, String)>, EngineError> {
        let link = self.link();
        let topology = owners::known(&link, self.until(self.deadline)).await?;
        let mut failing: Vec<(String, String)> = Vec::new();
        for (name, program) in scripts.iter() {
            for lua in driver::loads(program.text) {
                for master in topology.masters() {
                    let eval = |out: &mut Vec<u8>| {
                        resp::begin(out, 3);
                        let words: [&[u8]; 3] = [b"EVAL", lua.as_bytes(), b"0"];
                        words.iter().for_each(|word| resp::word(out, word));
                    };
                    let pipeline = link.pipeline(&master.address)?;
                    let until = self.until(self.deadline);
                    let reply = pipeline.call(until, false, eval).await?;
                    let is_news = failing.last().is_none_or(|(known, _)| known != name);
                    if let Err(error) = reply.extract_error()
                        && is_news
                    {
                        let said = error.detail().unwrap_or_default().to_owned();
                        failing.push((name.to_owned(), said));
                    }
                }
            }
        }
        Ok(failing)
    }
}
