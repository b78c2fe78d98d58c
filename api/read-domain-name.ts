/** Domain names as peers of policies. */
import { describeValue, fail, type ObjectField, readString } from './read-field.ts';

/**
 * NPEP-133's pattern. Its `A-z`, a slip that later versions mended, lets a label begin with `_`, which is as it
 * should be (`_acme-challenge.example.com`), and with `[\]^` and backquotes, which is not.
 */
const LABEL = '[a-zA-Z0-9_]([-a-zA-Z0-9_]*[a-zA-Z0-9])?';
const DOMAIN_NAME = new RegExp(`^(\\*\\.)?(${LABEL}\\.)+${LABEL}\\.?$`);
/** RFC 1035, section 2.3.4: in text, without the final dot. */
const MAX_NAME = 253;
const MAX_LABEL = 63;

/**
 * One of `domainNames`: a name, or `*.` and a name for what is below it.
 * @returns it in lower case and without the final dot.
 */
export function readDomainName(field: ObjectField): string {
  const value = readString(field);
  const name = value.toLowerCase().replace(/\.$/, '');
  const isName =
    value.length <= MAX_NAME + 1 &&
    name.length <= MAX_NAME &&
    DOMAIN_NAME.test(value) &&
    name.split('.').every((label) => label.length <= MAX_LABEL);
  if (isName) return name;
  return fail(
    field,
    `must be a domain name such as example.com or *.example.com, not ${describeValue(value)}`,
  );
}
