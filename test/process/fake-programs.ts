import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Programs of a test, which this process finds before those of the machine. */
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

  /** A file that a program wrote beside itself (`$0`). */
  read(name: string): string {
    return readFileSync(join(this.#directory, name), 'utf8');
  }

  /** @param script of sh. */
  write(name: string, script: string): void {
    const file = join(this.#directory, name);
    // Not over a file that runs, which the kernel refuses.
    rmSync(file, { force: true });
    writeFileSync(file, `#!/bin/sh\n${script}\n`);
    chmodSync(file, 0o755);
  }
}
