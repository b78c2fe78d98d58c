/** Problems in manifests. */
import { printableAscii } from '../../api/read-field.ts';

/** A part of a manifest that cannot be read or is not used. */
export interface Problem {
  /** Counted from 1. */
  readonly line?: number | undefined;
  /** `Service default/web`. */
  readonly object?: string | undefined;
  /** Path of the field, such as `spec.ports[0].port`. */
  readonly field?: string | undefined;
  readonly reason: string;
}

export interface ManifestProblem extends Problem {
  /** Path of the file, or of the directory if it cannot be read. */
  readonly file: string;
}

/** `web.yaml:12: Service default/web: spec.ports[0].port: is required`, in printable ASCII. */
export function formatProblem({ file, line, object, field, reason }: ManifestProblem): string {
  const place = line === undefined ? file : `${file}:${line}`;
  return [place, object, field, reason]
    .filter((part) => part !== undefined)
    .map(printableAscii)
    .join(': ');
}
