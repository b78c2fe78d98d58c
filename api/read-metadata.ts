/** Reads the name, namespace and timestamps of any object. */
import { isNamespaced, type Kind, type ObjectKey } from './objects.ts';
import {
  child,
  describeValue,
  fail,
  isMissing,
  isRecord,
  type ObjectField,
  printableAscii,
  readOptionalString,
  rootField,
} from './read-field.ts';
import { readDnsLabel, readDnsSubdomain } from './read-name.ts';

/** Identity of an object, and its root and metadata fields for further reading. */
export interface Metadata {
  readonly root: ObjectField;
  readonly metadata: ObjectField;
  readonly key: ObjectKey;
  /** Empty for a cluster-scoped object. */
  readonly namespace: string;
  readonly name: string;
}

/** Kinds whose names must be DNS labels; names of other kinds are DNS subdomains. */
const LABEL_NAMED: ReadonlySet<Kind> = new Set<Kind>(['Service', 'Namespace']);

/** @throws InvalidObject when the name or the namespace cannot be read. */
export function readMetadata(kind: Kind, raw: unknown): Metadata {
  const root = rootField(objectLabel(kind, raw), raw);
  const metadata = child(root, 'metadata');
  const nameField = child(metadata, 'name');
  const name = LABEL_NAMED.has(kind) ? readDnsLabel(nameField) : readDnsSubdomain(nameField);
  if (!isNamespaced(kind)) return { root, metadata, key: name, namespace: '', name };
  const namespaceField = child(metadata, 'namespace');
  // The default namespace, as in kubectl without --namespace.
  const missing = isMissing(namespaceField) || namespaceField.value === '';
  const namespace = missing ? 'default' : readDnsLabel(namespaceField);
  return { root, metadata, key: `${namespace}/${name}`, namespace, name };
}

/** `Service default/web` for messages, in printable ASCII. An unreadable name becomes `?`. */
export function objectLabel(kind: Kind, raw: unknown): string {
  const metadata = isRecord(raw) && isRecord(raw.metadata) ? raw.metadata : {};
  const name =
    typeof metadata.name === 'string' ? printableAscii(metadata.name.slice(0, 253)) : '?';
  if (!isNamespaced(kind)) return `${kind} ${name}`;
  const { namespace } = metadata;
  const given = typeof namespace === 'string' && namespace !== '';
  return `${kind} ${given ? printableAscii(namespace.slice(0, 63)) : 'default'}/${name}`;
}

const RFC3339 =
  /^(\d{4}-\d{2}-\d{2})T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$/;

/**
 * `metadata.creationTimestamp` in UTC with whole seconds, the form of the API server; empty when
 * missing. The text order of this form is the time order. In a YAML 1.1 document the parser turns an
 * unquoted time into a Date.
 * @throws InvalidObject
 */
export function readCreationTimestamp(metadata: ObjectField): string {
  const field = child(metadata, 'creationTimestamp');
  const { value } = field;
  if (value instanceof Date)
    return wholeSeconds(value) ?? fail(field, 'must be a time between the years 0000 and 9999');
  const given = readOptionalString(field);
  if (given === undefined) return '';
  const time = parseTime(given);
  const canonical = time === undefined ? undefined : wholeSeconds(time);
  return canonical ?? fail(field, `must be an RFC 3339 time, not ${describeValue(given)}`);
}

/**
 * Parses an RFC 3339 time with millisecond precision.
 * @returns undefined when the text is not a time.
 */
export function parseTime(given: string): Date | undefined {
  const upper = given.toUpperCase();
  const [, date] = RFC3339.exec(upper) ?? [];
  // Reject dates such as 30 February, which `Date` reads as a day in March.
  const isRealDate =
    date !== undefined && wholeSeconds(new Date(`${date}T00:00:00Z`))?.startsWith(date);
  return isRealDate ? new Date(upper) : undefined;
}

/** The RFC 3339 time in UTC with whole seconds; undefined outside the years 0000 to 9999. */
function wholeSeconds(date: Date): string | undefined {
  if (Number.isNaN(date.getTime())) return undefined;
  const iso = date.toISOString();
  return iso.length === 24 ? `${iso.slice(0, 19)}Z` : undefined;
}
