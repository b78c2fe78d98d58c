import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Fake programs for a test, placed first in PATH. */
export class FakePrograms {
  #directory = '';
  #path: string | undefined;

  install(): void {
    this.#directory = mkdtempSync(join(tmpdir(), 'portwide-programs-'));
    this.#path = process.env.PATH;
    process.env.PATH = `${this.#directory}:${this.#path}`;
  }

  remove(): void {
    process.env.PATH = this.#path;
    rmSync(this.#directory, { recursive: true, force: true });
  }

  /** Reads a file that a program wrote next to itself (`$0`). */
  read(name: string): string {
    return readFileSync(join(this.#directory, name), 'utf8');
  }

  /** @param script A script for sh. */
  write(name: string, script: string): void {
    const file = join(this.#directory, name);
    // The kernel refuses to overwrite a running executable, so remove it first.
    rmSync(file, { force: true });
    writeFileSync(file, `#!/bin/sh\n${script}\n`);
    chmodSync(file, 0o755);
  }
}
