// Languages by the codes of models, such as `de`, `pt_BR` and `arb_Arab`.

// Scripts.
const RIGHT_TO_LEFT = new Set(["Adlm", "Arab", "Armi", "Hebr", "Nkoo", "Rohg", "Syrc", "Thaa"]);

/** The language tag (BCP 47) of a code: `pt-BR` of `pt_BR`, `ja-Jpan` of `jpn_Jpan`. */
export function languageTag(code) {
  const tag = code.replaceAll("_", "-");
  try {
    return Intl.getCanonicalLocales(tag)[0];
  } catch {
    return tag;
  }
}

export function languageName(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(languageTag(code));
  } catch {
    return code;
  }
}

export function direction(code) {
  try {
    const { script } = new Intl.Locale(languageTag(code)).maximize();
    return RIGHT_TO_LEFT.has(script) ? "rtl" : "ltr";
  } catch {
    return "ltr";
  }
}
