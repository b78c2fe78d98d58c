import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';

/** Paths of PEM files. */
export interface Certificate {
  readonly cert: string;
  readonly key: string;
}

/** A certificate authority for one test, in its own directory. */
export class Authority {
  readonly directory = mkdtempSync(join(tmpdir(), 'portwide-ca-'));
  readonly #own: Certificate = this.#files('ca');

  private constructor() {}

  static async create(): Promise<Authority> {
    const authority = new Authority();
    const { cert, key } = authority.#own;
    const subject = ['-x509', '-subj', '/CN=test-ca', '-days', '2'];
    await authority.#openssl('req', ...subject, ...NEW_KEY, '-keyout', key, '-out', cert);
    return authority;
  }

  /** Path of the authority's certificate. */
  get cert(): string {
    return this.#own.cert;
  }

  /** @param names such as `IP:127.0.0.1` and `DNS:api.example`. */
  async issue(subject: string, names: readonly string[] = []): Promise<Certificate> {
    const files = this.#files(subject);
    const alternatives = names.length === 0 ? [] : ['-addext', `subjectAltName=${names.join(',')}`];
    await this.#openssl(
      'req',
      ...['-x509', '-CA', this.#own.cert, '-CAkey', this.#own.key, '-days', '2'],
      ...['-subj', `/CN=${subject}`, '-addext', 'basicConstraints=critical,CA:FALSE'],
      ...alternatives,
      ...NEW_KEY,
      ...['-keyout', files.key, '-out', files.cert],
    );
    return files;
  }

  destroy(): void {
    rmSync(this.directory, { recursive: true, force: true });
  }

  #files(name: string): Certificate {
    const path = join(this.directory, name);
    return { cert: `${path}.crt`, key: `${path}.key` };
  }

  async #openssl(...args: readonly string[]): Promise<void> {
    await execa('openssl', args);
  }
}

const NEW_KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];

/** Reads the files, in the form of `DoubleOptions`. */
export function pemOf({ cert, key }: Certificate): { cert: string; key: string } {
  return { cert: readFileSync(cert, 'utf8'), key: readFileSync(key, 'utf8') };
}
