/** Reads domain names in policy peers. */
import { describeValue, fail, type ObjectField, readString } from './read-field.ts';

/**
 * One label of NPEP-133's pattern, corrected. `A-z` in NPEP-133, a mistake fixed in later versions,
 * also allows labels to begin with `_`, `[`, `\`, `]`, `^` and backquotes. This pattern adds only `_`
 * to letters and digits, because real names use it (`_acme-challenge.example.com`).
 */
const LABEL = '[a-zA-Z0-9_]([-a-zA-Z0-9_]*[a-zA-Z0-9])?';
const DOMAIN_NAME = new RegExp(`^(\\*\\.)?(${LABEL}\\.)+${LABEL}\\.?$`);
/** RFC 1035, section 2.3.4: length of the text without the trailing dot. */
const MAX_NAME_LENGTH = 253;
const MAX_LABEL_LENGTH = 63;

/**
 * Reads one entry of `domainNames`: a name, or `*.` and a name for its subdomains.
 * @returns the name in lower case, without the trailing dot.
 * @throws InvalidObject
 */
export function readDomainName(field: ObjectField): string {
  const value = readString(field);
  const name = value.toLowerCase().replace(/\.$/, '');
  const isName =
    value.length <= MAX_NAME_LENGTH + 1 &&
    name.length <= MAX_NAME_LENGTH &&
    DOMAIN_NAME.test(value) &&
    name.split('.').every((label) => label.length <= MAX_LABEL_LENGTH);
  if (isName) return name;
  return fail(
    field,
    `must be a domain name such as example.com or *.example.com, not ${describeValue(value)}`,
  );
}
