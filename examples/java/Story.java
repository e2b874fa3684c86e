// A story through the same library from Java: BUNDLE "Once upon a time"
package org.edgedec.examples;

import java.io.File;
import org.edgedec.Edgedec;
import org.edgedec.GenerateOptions;
import org.edgedec.Model;
import org.edgedec.Session;

public final class Story {
    public static void main(String[] arguments) {
        String prompt = arguments[1];
        try (Model model = Edgedec.open(new File(arguments[0])); Session session = model.session()) {
            System.out.print(prompt);
            session.generateBlocking(prompt, new GenerateOptions(150), token -> {
                System.out.print(token.getText());
                return true;
            });
            System.out.println();
        }
    }
}
